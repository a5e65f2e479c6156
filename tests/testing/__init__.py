"""What people test their own pipelines with."""
