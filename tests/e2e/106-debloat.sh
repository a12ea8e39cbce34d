#!/bin/sh
# gpt-debloat on the simulated device: slim libraries elsewhere, in place, and undo that; combine runs; compare runs.
set -eu
PATH=$PYTHONPATH/bin:$PATH
gpt-hook check >/dev/null 2>&1 || test $? -ne 4 || { echo "no gpt-hook: make runtime"; exit 77; }
python3 -m tests.demo.build lib
mkdir tmp
export XDG_STATE_HOME="$PWD/state" TMPDIR="$PWD/tmp" # others use /tmp at the same time
sum() { sha256sum <"$1"; }
original=$(sum lib/libdemo.so)

# A program that loads the library and looks up a kernel, which the simulated device can do.
cat >use <<'EOF'
#!/usr/bin/env python3
import ctypes, os, sys
driver = ctypes.CDLL("libcuda.so.1")
library, context, module, kernel = ctypes.CDLL(sys.argv[1]), *(ctypes.c_void_p() for _ in range(3))
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
if sys.argv[3:] == ["wait"]:
    open("ready", "w").write("\n")
    open("go").read()
getattr(library, "demo_" + sys.argv[2])()
if sys.argv[3:] == ["size"]:
    print(os.path.getsize(os.path.realpath(sys.argv[1])))
elif sys.argv[3:] == ["where"]:
    print({line.split()[-1] for line in open("/proc/self/maps") if "libdemo" in line})
else:
    print("done")
EOF
chmod +x use

# Elsewhere: it prints a report and writes a smaller library. The PTX of the used kernel is left.
gpt-debloat --device sim -- ./use ./lib/libdemo.so matmul >out 2>err
grep -qx "done" out
grep -q "no kernel used" out
test "$(gpt-extract --json slim/libdemo.so | grep -c '"kind": "element"')" -eq 1
test "$(sum lib/libdemo.so)" = "$original"

# The traces of two runs together keep both kernels; with --arch instead of the device, cubins are kept.
gpt-hook run -o matmul.mp --device sim -- ./use ./lib/libdemo.so matmul >/dev/null 2>&1
gpt-hook run -o fill.mp --device sim -- ./use ./lib/libdemo.so fill >/dev/null 2>&1
gpt-debloat -o both --traces matmul.mp fill.mp --arch sm_90 --granularity kernel >out
test "$(gpt-extract --json both/libdemo.so | grep -c '"kind": "element"')" -eq 2
gpt-debloat -n -o nothing --traces matmul.mp >out
test ! -e nothing

# In place, with a check, then restored. Nothing is left behind.
gpt-debloat --apply --check --device sim -- ./use ./lib/libdemo.so matmul >out 2>err
grep -q "check: same status (0), same output" out
test "$(grep -c "warning: check" err)" -eq 0
test "$(sum lib/libdemo.so.gpt-orig)" = "$original"
test "$(sum lib/libdemo.so)" = "$(sum slim/libdemo.so)"
gpt-debloat --restore -n >out
grep -q "^ *[0-9.]*[KM]iB  $PWD/lib/libdemo.so.gpt-orig$" out
grep -q "^backups: 1, [0-9.]*[KM]iB$" out
test "$(sum lib/libdemo.so)" = "$(sum slim/libdemo.so)"
gpt-debloat --restore | grep -q "^libraries restored: 1, from [0-9.]*[KM]iB of backups$"
test "$(sum lib/libdemo.so)" = "$original"
test ! -e lib/libdemo.so.gpt-orig

# Without a backup, nothing can be restored, and no more can be cut for another program.
mkdir image
cp lib/libdemo.so image/libdemo.so
gpt-debloat --apply --no-backup --traces matmul.mp -r image >out
test "$(sum image/libdemo.so)" = "$(sum slim/libdemo.so)"
test "$(find image -type f | wc -l)" -eq 1
test -z "$(ls state/gpt/applied 2>/dev/null)"
status=0
gpt-debloat --apply --traces fill.mp -r image >out 2>err || status=$?
test $status -eq 1
grep -q "was slimmed before, and its original is gone: install it again" err
test "$(sum image/libdemo.so)" = "$(sum slim/libdemo.so)"
gpt-debloat --apply --traces matmul.mp -r image >out # nothing goes: no error
test "$(find image -type f | wc -l)" -eq 1

# A process that has the library loaded keeps the original when the file is replaced.
mkfifo ready go
gpt-hook run -o shared.mp --device sim -- sh -c './use ./lib/libdemo.so fill wait' >shared 2>&1 &
read -r _ <ready
gpt-debloat --apply --traces matmul.mp >out
test "$(sum lib/libdemo.so)" = "$(sum slim/libdemo.so)"
echo >go
wait $!
grep -qx "done" shared
test "$(grep -c warning: shared)" -eq 0
gpt-debloat --restore >out
test "$(sum lib/libdemo.so)" = "$original"

# Both runs read the same file as standard input.
seq 3 >numbers
gpt-debloat --apply --check --device sim -- sh -c './use ./lib/libdemo.so matmul && cat' <numbers >out 2>err
grep -q "check: same status (0), same output (11 bytes)" out
gpt-debloat --restore >out

# If both runs fail alike, or print nothing, the comparison proves little.
status=0
gpt-debloat --check --device sim -- sh -c './use ./lib/libdemo.so matmul; exit 3' >out 2>err || status=$?
test $status -eq 0
grep -q "check: same status (3)" out
grep -q "warning: check: both runs failed" err
gpt-debloat --check --device sim -- sh -c './use ./lib/libdemo.so matmul >/dev/null' >out 2>err
grep -q "check: same status (0), same output (0 bytes)" out
grep -q "warning: check: neither run wrote to standard output" err
test "$(grep -c "both runs failed" err)" -eq 0

# The program prints something else with the new library: that's reported, and the change undone.
status=0
gpt-debloat --apply --check --device sim -- ./use ./lib/libdemo.so matmul size >out 2>err || status=$?
test $status -eq 1
grep -q "its output differs; the originals are back" err
test "$(sum lib/libdemo.so)" = "$original"

# For another program, whose code is already gone: the code that the first one uses stays.
gpt-debloat --apply --traces matmul.mp >out
status=0
gpt-debloat --apply --device sim -- ./use ./lib/libdemo.so fill >out 2>err || status=$?
test $status -eq 1
grep -q "was replaced before: restore it first, and combine the traces of all runs" err
test "$(sum lib/libdemo.so)" = "$(sum slim/libdemo.so)"
gpt-debloat --restore >out
test "$(sum lib/libdemo.so)" = "$original"

# gpt-debloat was killed before it could report what it replaced; the change can be undone anyway.
mkdir -p two
cp lib/libdemo.so two/a.so
cp lib/libdemo.so two/b.so
mkdir -p stages
cat >stages/gpt-patch <<EOF
#!/bin/sh
"$PYTHONPATH/bin/gpt-patch" "\$@" | cat
case "\$*" in *--written*) kill -9 0 ;; esac # not where the options are tried
EOF
chmod +x stages/gpt-patch
sed "s|^PATH=.*|PATH=$PWD/stages:$PYTHONPATH/bin:\$PATH|" "$PYTHONPATH/bin/gpt-debloat" >debloat
setsid bash ./debloat --apply --traces matmul.mp -r two >out 2>&1 || true
test "$(sum two/a.so.gpt-orig)" = "$original"
gpt-debloat --restore | grep -q "^libraries restored: 2, from [0-9.]*[KM]iB of backups$"
test "$(sum two/a.so)" = "$original"
test "$(sum two/b.so)" = "$original"
test "$(find two -type f | wc -l)" -eq 2
test -z "$(ls state/gpt/applied)"

# A program that fails: nothing is applied.
status=0
gpt-debloat --apply --device sim -- sh -c "./use ./lib/libdemo.so matmul; exit 3" >out 2>err || status=$?
test $status -eq 1
grep -q "ended with status 3: nothing is applied" err
test "$(sum lib/libdemo.so)" = "$original"
status=0
gpt-debloat --apply --check --traces matmul.mp --device sim -- \
    sh -c "./use ./lib/libdemo.so matmul; exit 3" >out 2>err || status=$?
test $status -eq 1
grep -q "ended with status 3: nothing is applied" err
test "$(sum lib/libdemo.so)" = "$original"

# A whole folder: it also has a copy that no program loaded, a link to it, and an earlier backup. The copy is read-only.
mkdir -p env/deep
cp lib/libdemo.so env/deep/libdemo.so
chmod 444 env/deep/libdemo.so
ln -s deep/libdemo.so env/libdemo.so
cp lib/libdemo.so env/libother.so
gpt-debloat --apply --traces matmul.mp -r env >out
test -L env/libdemo.so
test "$(sum env/deep/libdemo.so)" = "$(sum slim/libdemo.so)"
test "$(stat -c %a env/deep/libdemo.so)" = 444
gpt-debloat --traces matmul.mp -r env -o tree >out
test "$(sum "tree$PWD/env/libother.so")" = "$(sum slim/libdemo.so)"
gpt-debloat --restore -r env | grep -q "^libraries restored: 2, from [0-9.]*[KM]iB of backups$"
test "$(sum env/deep/libdemo.so)" = "$original"
test "$(find env -type f | wc -l)" -eq 2

# If a file has two names, the first one is used. A program that loads it by the other name hasn't tried the result.
mkdir names
cp lib/libdemo.so names/b.so
ln names/b.so names/a.so
status=0
gpt-debloat --check --device sim --traces matmul.mp -r names -o named -- ./use ./names/b.so matmul >out 2>err || status=$?
test $status -eq 1
grep -q "check: none of the new libraries was loaded" err
gpt-debloat --check --device sim --traces matmul.mp -r names -o named -- ./use ./names/a.so matmul >out 2>err

# A wheel becomes a wheel.
mkdir wheels
(cd env && python3 -m zipfile -c ../wheels/env-1-py3-none-any.whl libother.so deep/)
gpt-debloat --traces matmul.mp -r wheels -o new >out
grep -q "^wheel written: new$PWD/wheels/env-1-py3-none-any.whl  (.* before, .* after)$" out
python3 -m zipfile -e "new$PWD/wheels/env-1-py3-none-any.whl" new/x
test "$(sum new/x/libother.so)" = "$(sum slim/libdemo.so)"
test "$(sum new/x/deep/libdemo.so)" = "$(sum slim/libdemo.so)"

gpt-debloat --check --device sim -- ./use ./lib/libdemo.so matmul >out 2>err
grep -q "check: same status (0), same output" out
status=0
gpt-debloat --check --device sim -- ./use ./lib/libdemo.so matmul where >out 2>err || status=$?
test $status -eq 1
grep -q "^+.*/slim/libdemo.so" err

# The command comes from the caller's PATH, not from the folder of the stages, which may have another python.
mkdir beside outside
for place in beside outside; do
    printf '#!/bin/sh\necho %s\n' $place >$place/which-one
    chmod +x $place/which-one
done
for script in gpt-debloat "gpt-negativa debloat --arch sm_90"; do
    sed "s|^PATH=.*|PATH=$PWD/beside:$PYTHONPATH/bin:\$PATH|" "$PYTHONPATH/bin/${script%% *}" >"${script%% *}"
    # shellcheck disable=SC2086 # words
    PATH=$PWD/outside:$PATH bash ./$script --device sim which-one >out 2>err || true
    grep -qx outside out
done

expect() { # STATUS WORDS COMMAND...
    status=0
    wanted=$1 words=$2
    shift 2
    "$@" >out 2>err || status=$?
    test $status -eq "$wanted" || { echo "$*: $status"; cat err; exit 1; }
    grep -q -e "$words" err || { cat err; exit 1; }
    test "$(grep -c error: err)" -eq 1
}
expect 2 "name a COMMAND" gpt-debloat
expect 2 "no such option: '--frobnicate'" gpt-debloat --frobnicate
expect 2 "no such option: '--apply=yes'" gpt-debloat --apply=yes ./use
expect 2 "requires a value" gpt-debloat -o
expect 2 "name of a folder" gpt-debloat --apply -r "" --traces matmul.mp
expect 4 "nothing.mp: No such file" gpt-debloat --traces nothing.mp
expect 2 "neither real nor sim" gpt-debloat --device simulated touch ran
expect 2 "is not one of 'fill'" gpt-debloat --mode full touch ran
test ! -e ran # options come first
expect 2 "takes only -r DIR and -n" gpt-debloat --restore --check
expect 2 "no-backup requires --apply" gpt-debloat --no-backup true
expect 2 "no-backup cannot be combined with --check" gpt-debloat --apply --no-backup --check true
expect 4 "nothing: No such file" gpt-debloat --restore -r nothing
expect 2 "cannot be combined with -o" gpt-debloat --apply -o x true
expect 2 "requires --check" gpt-debloat --traces matmul.mp -- true
expect 1 "never used the CUDA driver" gpt-debloat --device sim true
expect 127 "" gpt-debloat ./nothing
rm -r state
expect 4 "nothing was applied" gpt-debloat --restore
head -c 100 matmul.mp >torn.mp
status=0
gpt-debloat -o torn --traces torn.mp 2>err || status=$?
test $status -eq 1
grep -q "truncated" err
test -z "$(ls torn 2>/dev/null)"
test -z "$(find tmp -mindepth 1 -maxdepth 1 -newer torn.mp)"
