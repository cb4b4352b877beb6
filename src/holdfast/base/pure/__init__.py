"""Records, their JSON form, and rules that several rooms share."""
