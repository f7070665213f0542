# Holds records of bytes and looks at them all the time, in two threads, beside garbage; tells what it is told, and says "fine" and ends with status 7 at the end.
import hashlib, os, sys, threading

held = {number: os.urandom(900) + str(number).encode() for number in range(16000)}
sums = {number: hashlib.md5(text).digest() for number, text in held.items()}
over = threading.Event()

def look(start):
    at = start
    while not over.wait(0.002):
        for number in range(at, at + 40):
            if hashlib.md5(held[number % 16000]).digest() != sums[number % 16000]:
                print('WRONG', number, flush=True)
                os._exit(1)
        garbage = [str(number) * 9 for number in range(500)]
        at += 40

threads = [threading.Thread(target=look, args=(start,)) for start in (0, 8000)]
for thread in threads: thread.start()
print('ready', flush=True)
for line in sys.stdin: print(line, end='', flush=True)
over.set()
for thread in threads: thread.join()
if any(hashlib.md5(text).digest() != sums[number] for number, text in held.items()): sys.exit(1)
print('fine')
sys.exit(7)
