"""From the digests of ranks to the verdict; record and words of an incident."""
