#!/bin/sh
# A user's own stage between two of ours, in shell: --json writes lines, jq changes them, --from-json reads them.
set -eu
command -v jq >/dev/null || { echo "no jq"; exit 77; }

python3 -m tests.demo.build .
echo _Z12matrixMulGPUPKfS0_Pfi >names.txt

# It removes PTX, whatever gpt-locate decides, and adds a note to the elements that it passes on.
gpt-extract libdemo.so --json |
    jq -c 'select(.type != "ptx") | if .kind == "element" then .note = {by: "jq"} else . end' |
    gpt-locate --from-json --used names.txt --arch sm_90 |
    gpt-patch -o slim --json >records.jsonl

# The notes got through two stages that don't know them. Elements that jq dropped were neither counted nor cut.
jq -es 'map(select(.kind == "element")) | length == 4 and all(.note == {by: "jq"})' records.jsonl
jq -es 'map(select(.kind == "span")) | length == 3' records.jsonl
jq -es 'map(select(.kind == "tally").elements) | add == 4' records.jsonl
jq -es '.[0].via == ["gpt-locate", "gpt-patch"] and .[-1].records == length - 2' records.jsonl
jq -es 'map(select(.kind == "patched")) | length == 1 and .[0].mode == "compact"' records.jsonl

gpt-extract slim/libdemo.so --json | jq -r 'select(.kind == "element") | .type + " " + .arch' | sort >left
printf 'cubin sm_90\nptx sm_90\nptx sm_90\n' | diff - left

# README's command does what README says: the PTX isn't in the stream, so it stays.
grep -q 'removes the PTX from the stream' "$PYTHONPATH/README.md"
filter=$(sed -n "s/^    [$] gpt-extract --json .* | jq -c '\([^']*\)' |.*/\1/p" "$PYTHONPATH/README.md")
[ "$filter" ]
gpt-extract --json libdemo.so | jq -c "$filter" | gpt-locate --from-json --used names.txt --arch sm_90 |
    gpt-patch -o again >again.mp
gpt-extract again/libdemo.so --json | jq -r 'select(.kind == "element") | .type + " " + .arch' | sort | diff - left
