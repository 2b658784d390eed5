"""Values that everything else is made of: records, keys, call ids, samples."""
