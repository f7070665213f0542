# Compiled by a folded compiler, run by a folded machine with each of three collectors.
$FOLD javac -d . "$PROGRAMS/Work.java"
sha256sum ./*.class
for collector in G1 Serial Parallel; do
    $FOLD java -XX:+Use${collector}GC -Xmx$((224 + 64 * SCALE))m Work $((40000 * SCALE))
done
