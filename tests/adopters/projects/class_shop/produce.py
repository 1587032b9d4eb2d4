from shop import append

for n in range(6):
    append.push("T0", n)
