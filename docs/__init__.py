"""The pages of the site, and the programs that make parts of them."""
