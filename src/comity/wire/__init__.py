"""Communication between processes and sites: encoding, sealing, shared memory, the ledger of
bytes.
"""
