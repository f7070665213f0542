// Holds records and buffers and looks at them all the time, beside garbage; tells what it is told, and says "fine" and ends with status 7 at the end.
const { createHash, randomBytes } = require('crypto');
const held = new Map(), sums = [];
const digest = (one) => createHash('md5').update(one.bytes).update(JSON.stringify(one.words)).digest('hex');
for (let number = 0; number < 12000; number++) {
  held.set(number, { bytes: randomBytes(700), words: [`word ${number}`, number, { inner: number * 1.5 }] });
  sums.push(digest(held.get(number)));
}
function look(numbers) {
  for (const number of numbers)
    if (digest(held.get(number)) !== sums[number]) { console.log('WRONG', number); process.exit(1); }
}
let at = 0;
const timer = setInterval(() => {
  look(Array.from({ length: 50 }, (_, i) => (at + i) % 12000));
  at += 50;
  Array.from({ length: 2000 }, (_, i) => ({ garbage: `${i}` }));
}, 2);
console.log('ready');
require('readline').createInterface({ input: process.stdin }).on('line', (line) => console.log(line)).on('close', () => {
  clearInterval(timer);
  look(sums.keys());
  console.log('fine');
  process.exitCode = 7;
});
