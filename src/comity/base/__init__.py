"""The values that all other packages use: records, keys, call ids, samples."""
