#!/bin/sh
# The demo asks three federations the same question: does collaborating help, whom, and at what cost?
#
# The settings were chosen to resemble real federations, before anybody looked at who wins:
# - Hospitals: four real ones.
# - Few labels: many sites with 25 labelled samples each, with label skew (Dirichlet 1).
# - Sensors: pairs of sites with the same kind of sensor, with 50 labelled samples each.
# Networks, rounds and step sizes are the same for all methods. Other constants are those of the papers. With
# many sites Fed-SPS asks only 4 peers a round, because asking all peers would not scale. To fit two minutes,
# rounds were cut afterwards (40 to 30 in the second), and the two most expensive methods were left out of the
# third. `make five` has them, with three seeds.
#
# Usage: sh examples/demo.sh [path of the comity command]
set -eu
comity=${1:-comity}
rm -rf demo

echo "1 of 3: four real hospitals predict heart disease; judged by AUC, over three seeds."
"$comity" compare fedavg fedavg+dbe adcol fedufo fed-sps relay --data heart --metric auc --seeds 0,1,2 \
    --out demo/1-hospitals --no-report

echo
echo "2 of 3: twenty sites read digits, with 25 labelled samples each."
"$comity" compare fedavg fedavg+dbe adcol fedufo "fed-sps(peers=4)" relay \
    --partition "dirichlet(alpha=1,min=35)|keep(samples=25)" --parties 20 --rounds 30 --out demo/2-few-labels --no-report

echo
echo "3 of 3: twelve sites read digits through six kinds of sensor, with 50 labelled samples each."
"$comity" compare fedavg fedbn fedavg+dbe adcol relay \
    --partition "iid|keep(samples=50)|shift(kinds=none,invert,rotate,noise,contrast,blur)" --parties 12 --engine process \
    --model "fedbn-cnn(scale=0.125)" --batch 16 --lr 0.02 --epochs 2 --rounds 30 --out demo/3-sensors --no-report

echo
"$comity" report demo
