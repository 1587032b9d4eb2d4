from shop import add, append

for n in range(10):
    last = append.push("T0", {"n": n})
print(append.AsyncResult(last).get(timeout=60), add.delay(b"one ", b"two").get(timeout=60))
