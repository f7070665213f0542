# A page that computes and draws, as a picture. What goes to the log are complaints about the missing desktop.
export HOME="$PWD"
$FOLD chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --window-size=800,600 \
    --user-data-dir="$PWD/profile" --virtual-time-budget=3000 --screenshot=picture.png \
    "file://$PROGRAMS/page.html" >log 2>&1
sha256sum picture.png
