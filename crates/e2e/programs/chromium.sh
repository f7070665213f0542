# A page that computes and draws, as a picture. What goes to the log are complaints about the missing desktop.
# SANDBOX is --no-sandbox, which root needs, or empty.
export HOME="$PWD"
cat >page.html <<'PAGE'
<!doctype html><meta charset="utf-8"><title>t</title><style>body{font:14px monospace}div{display:inline-block;margin:1px}</style>
<body><h1>page</h1><script>
let x = 1; const next = () => (x = (Math.imul(x, 1103515245) + 12345) & 0x7fffffff);
const rows = Array.from({length: 60000}, (_, i) => ({i, n: next(), text: "text ".repeat(next() % 9)}));
let sum = 0; for (const r of rows) sum = (Math.imul(sum, 31) + r.n + r.text.length) | 0;
for (let i = 0; i < 400; i++) { const d = document.createElement("div"); d.textContent = rows[i].n; d.style.background = "hsl(" + rows[i].n % 360 + ",70%,70%)"; document.body.append(d); }
const p = document.createElement("p"); p.textContent = "sum " + sum; document.body.append(p);
</script></body>
PAGE
# Its zygote, which is small, insists on having one thread.
$FOLD env MEMFOLD_START_AT=2M chromium --headless $SANDBOX --disable-gpu --run-all-compositor-stages-before-draw --disable-quic --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --window-size=800,600 \
    --user-data-dir="$PWD/profile" --virtual-time-budget=3000 --screenshot=picture.png \
    "file://$PWD/page.html" >log 2>&1
sha256sum picture.png
