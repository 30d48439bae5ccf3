"""What Boonta costs and how fast it is, beside its peers; see README.md."""
