"""Secure aggregation: the server learns the sum of the sites' replies, and no single reply.

EXPERIMENTAL: nobody outside of the project has reviewed this code. Do not rely on it alone.

The protocol is that of Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine
Learning, CCS 2017, Figure 4, in its version against an active server. A round has five steps. In
each step the server collects one message from every site, and sends one message to every site that
has answered so far. The paper calls the sites that complete the steps U1 to U5.

=====  ===============================  ==========================================================
step   `SiteRound`, then `ServerRound`  content (the paper's round in parentheses)
=====  ===============================  ==========================================================
1      `keys`, `collect_keys`           two fresh X25519 keys, signed (0, AdvertiseKeys)
2      `shares`, `collect_shares`       encrypted Shamir shares of the mask key and of the self
                                        seed, for every other site (1, ShareKeys)
3      `masked`, `add_masked`, `close`  the encoded reply plus masks (2, MaskedInputCollection)
4      `signature`,                     a signature of the list of survivors, that is, of the
       `collect_signatures`             sites in the sum (3, ConsistencyCheck)
5      `reveal`, `unmask`               for every survivor a share of its self seed; for every
                                        lost site a share of its mask key (4, Unmasking)
=====  ===============================  ==========================================================

**Masks.** The encoded reply x_u is a vector of integers modulo 2^32. Site u sends

    y_u = x_u + PRG(b_u) + Σ_{v < u} PRG(s_uv) − Σ_{v > u} PRG(s_uv)   (mod 2^32)

where b_u is its self seed, s_uv is the key that it shares with site v, and PRG is ChaCha20. The
masks of pairs cancel in the sum. The server removes PRG(b_u) of each survivor, and the masks that
survivors share with lost sites, after at least t sites have revealed their shares.

**Threshold.** The server is malicious and colludes with c of the n sites on the roster. The
threshold t must satisfy 2t > n + c (the paper's Theorem 6.5). The reason: a reply is exposed if
t sites accept a list with the site on it, and t sites accept a list without it. The c colluders
accept both lists. Each of the n − c honest sites accepts one list only, because `SiteRound` signs
once and reveals once. Two lists therefore need 2(t − c) ≤ n − c honest sites, that is 2t ≤ n + c.
With c < n/3, the paper's t = ⌊2n/3⌋ + 1 satisfies the bound. The same argument covers the lists of
steps 1 and 2, because a signature of step 4 also covers them. A sum that the server learns
therefore has at least t − c honest replies, which is more than half of all honest ones. `Terms`
refuses t − c < 2, because a sum of one reply is that reply. Every site that sees the mean can
subtract its own reply, so c is at least 1 in most federations.

**The site decides.** A site checks the `Terms` of a round against its own `SiteLimits` (least
threshold, least roster, least number of colluders). A server can ask for stricter terms only.

**Additions to the paper.**

- All keys, lists and messages are bound to the run, the call, the roster, the threshold, the
  encoding, a digest of the server's message to the sites, and the list of all keys. A server that
  sends different models to different sites, in order to single out the reply of one of them
  (Pasquini et al., Eluding Secure Aggregation in Federated Learning via Model Inconsistency, CCS
  2022), gets no sum.
- A site commits to its self seed in step 1, so that the server notices a wrong share in step 5.
- A site masks one reply for each call of a run, also after a restart (`RoundLog`). Otherwise the
  server could repeat a round without one site, and subtract the sums.

**Distributed noise.** With `Encoding.noise` each site adds discrete Gaussian noise to its integers
(`noise.py`). It is sized so that the noise of t − c sites suffices: that many honest sites are in
every sum.

**What it does not protect.** The sum itself, which without noise can tell much about a site. Sums
of several rounds: a server that trains the same model twice, once without a site, learns about that
site from the difference. The weights and sizes that a method sends outside of the masked vector.
The sum from a malicious site, which can send any vector. The list of sites in the sum is public.
"""

from __future__ import annotations

from comity.privacy.secagg.encoding import Encoding, Layout
from comity.privacy.secagg.errors import SecureAggregationError
from comity.privacy.secagg.messages import (
    Inbox,
    MaskedReply,
    RevealedShares,
    RosterKeys,
    Signatures,
    SiteKeys,
    SiteShares,
    Survivors,
    SurvivorSignature,
    from_bytes,
    to_bytes,
)
from comity.privacy.secagg.server import ServerRound, SumOfReplies
from comity.privacy.secagg.site import RoundFiles, RoundLog, Signatory, SiteRound
from comity.privacy.secagg.terms import SiteLimits, Terms, check_only_averages, least_threshold

__all__ = [
    "Encoding",
    "Inbox",
    "Layout",
    "MaskedReply",
    "RevealedShares",
    "RosterKeys",
    "RoundFiles",
    "RoundLog",
    "SecureAggregationError",
    "ServerRound",
    "Signatory",
    "Signatures",
    "SiteKeys",
    "SiteLimits",
    "SiteRound",
    "SiteShares",
    "SumOfReplies",
    "SurvivorSignature",
    "Survivors",
    "Terms",
    "check_only_averages",
    "from_bytes",
    "least_threshold",
    "to_bytes",
]
