# A part of CPython's own test-suite, test by test; how many passed and were skipped is compared too.
tests="test_mmap test_gc test_dict test_list test_memoryview test_zlib test_marshal test_ctypes test_thread"
[ "$SCALE" = 1 ] || tests="$tests test_array test_bytes test_fork1 test_io test_multiprocessing_fork test_subprocess test_weakref"
for test in $tests; do
    $FOLD /usr/bin/python3 -m test -v "$test" >log 2>&1 || { cat log >&2; exit 1; }
    echo "$test: $(grep -c 'ok$' log) ok, $(grep -c "\.\.\. skipped" log || true) skipped, $(tail -n 1 log)"
done
