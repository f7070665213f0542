# A crate of this workspace and the crates that it uses, compiled by a folded cargo and folded compilers.
build=$PWD
cd "$PROGRAMS"
crates="-p memfold-stats"
[ "$SCALE" = 1 ] || crates="$crates -p memfold-sim -p memfold-plot"
export CARGO_INCREMENTAL=0
unset CARGO_TARGET_DIR
$FOLD cargo build --offline --locked --quiet -j2 $crates --target-dir "$build" \
    --config profile.dev.debug=false --config "build.rustflags=[\"--remap-path-prefix=$build=/build\"]"
cd "$build/debug/deps"
sha256sum ./*.rlib
