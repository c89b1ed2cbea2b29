"""Code of a user's own: a workflow, an aggregator, codecs and a filter."""

import zlib

import numpy as np

from flstream.workflows import FoldRule


def odd_even(run):
    """Train the odd sites, then the even ones; who goes first is drawn, and counts are kept."""
    model, coin, turns = run.initial_model(), run.random("coin"), 0
    for _ in run.rounds():
        halves = [run.sites[::2], run.sites[1::2]]
        if coin.random() < 0.5:
            halves.reverse()
        for sites in halves:
            turns += 1
            model = run.fold(model, run.train(model, sites, meta={"turn": turns}))
        run.evaluate(model)
    return model


def buffered(run, args):
    """Train at two sites at a time, and fold each three answers, weighted by their age.

    Answers are taken as they come, or the oldest training's first, or in the order of the sites'
    names in ``args.order``.
    """
    model, draw, order = run.initial_model(), run.random("sites"), args.order
    names = iter(() if isinstance(order, str) else order)
    busy, early = [], {}
    for _ in run.rounds():
        buffer = []
        while len(buffer) < 3:
            while len(busy) < 2:
                site = draw.choice([site for site in run.sites if site not in busy])
                run.start(site, model)
                busy.append(site)
            if order == "arrival":
                answer = run.next()
            else:
                expected = busy[0] if order == "oldest" else next(names)
                while expected not in early:
                    answer = run.next()
                    early[answer.site] = answer
                answer = early.pop(expected)
            busy.remove(answer.site)
            if answer.ok:
                buffer.append(answer)
        weights = [(1 + model.version - answer.base.version) ** -0.5 for answer in buffer]
        model = run.fold(model, buffer, FoldRule(weights, scale=1 / len(weights), base="own"))
        run.evaluate(model)
    return model


class Middle:
    """The middle one of the values, or the mean of the two in the middle."""

    def fold(self, values, weights):
        """Fold values (updates, elements)."""
        return np.median(values, axis=0)


class Deflate:
    """A compressor of frames."""

    def compress(self, data):
        """Bytes of a frame, shorter."""
        return zlib.compress(bytes(data), 1)

    def expand(self, payload, size):
        """The frame again, of ``size`` bytes."""
        return zlib.decompress(bytes(payload), bufsize=size)


class Sixteenths:
    """Encodes numbers as whole sixteenths between -8 and 8."""

    def nbytes(self, dtype, count):
        """A byte a number."""
        return count

    def encode(self, numbers, place):
        """The nearest sixteenths."""
        sixteenths = np.rint(np.asarray(numbers, np.float64) * 16)
        return np.clip(sixteenths, -127, 127).astype(np.int8).tobytes()

    def decode(self, data, place):
        """The numbers again."""
        return np.frombuffer(data, np.int8).astype(np.float32) / 16


class Signs:
    """Keeps the signs of changes, of which a few are flipped by the block's own numbers."""

    def __call__(self, values, block):
        """Return as many numbers as were given."""
        return np.where(block.uniforms() < 0.125, -np.sign(values), np.sign(values)) / 64
