"""`comity audit RUN`: attacks on the recorded messages of a run, which show what they reveal about
the parties' samples.

`view` is what an attacker has, `observed` finds in it the tensors that attacks are known for, and
each attack is a file. `chance` computes how certain a success is, and `audit` collects all results
in one table. `noise_check`, `account_check` and `private_training` check what a run declares about
its privacy; `local_training` finds the training that they need.
"""
