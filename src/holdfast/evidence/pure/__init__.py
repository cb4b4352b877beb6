"""From what each rank shows to the verdict, and the record and the words of an incident."""
