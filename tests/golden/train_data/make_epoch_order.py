"""Writes epoch_order.txt: permutations by the rule in torchamp/train/data/loader.h, in plain Python.

The Mersenne twister (64 bit) is written from its paper: Nishimura 2000, "Tables of 64-bit Mersenne
twisters". Run: python3 make_epoch_order.py > epoch_order.txt
"""

MASK = (1 << 64) - 1


def mix64(word):
    word = (word + 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


class Twister:
    N, M = 312, 156

    def __init__(self, seed):
        self.state = [seed & MASK]
        for i in range(1, self.N):
            last = self.state[-1]
            self.state.append((6364136223846793005 * (last ^ (last >> 62)) + i) & MASK)
        self.index = self.N

    def twist(self):
        upper = MASK ^ ((1 << 31) - 1)
        state, n = self.state, self.N
        for i in range(n):
            x = (state[i] & upper) | (state[(i + 1) % n] & ~upper & MASK)
            state[i] = state[(i + self.M) % n] ^ (x >> 1) ^ (0xB5026F5AA96619E9 if x & 1 else 0)
        self.index = 0

    def __call__(self):
        if self.index == self.N:
            self.twist()
        x = self.state[self.index]
        self.index += 1
        x ^= (x >> 29) & 0x5555555555555555
        x ^= (x << 17) & 0x71D67FFFEDA60000
        x ^= (x << 37) & 0xFFF7EEE000000000
        return x ^ (x >> 43)


def below(engine, bound):
    while True:
        word = engine()
        if word >= (1 << 64) % bound:
            return word % bound


def epoch_order(size, seed, epoch):
    engine = Twister(mix64(mix64(seed) ^ epoch))
    order = list(range(size))
    for place in range(size - 1, 0, -1):
        other = below(engine, place + 1)
        order[place], order[other] = order[other], order[place]
    return order


check = Twister(5489)  # the standard gives the 10000th output of the default seed: 9981545732273789042
assert [check() for _ in range(10000)][-1] == 9981545732273789042

for size, seed, epoch in [(1, 0, 0), (2, 0, 1), (10, 0, 0), (10, 0, 1), (10, 1, 0), (400, 12345678901234567890, 7)]:
    print(size, seed, epoch, *epoch_order(size, seed, epoch))
