"""One-line mistakes, spread over the rooms, that the tests have to find."""

from typing import NamedTuple


class Mutation(NamedTuple):
    """A mistake in one place.

    Attributes:
        path: The file, below flstream/.
        old: Text of which there is one in the file.
        new: What a mistake would make of it.
        tests: What of tests/ finds it, as arguments of pytest.
    """

    path: str
    old: str
    new: str
    tests: str


BITS = "matrix/test_bits.py"

MUTATIONS = (
    # How updates are folded.
    Mutation(
        "server/task_run.py",
        "return {site: self.answers[site] for site in self._spec.cohort if site in self.answers}",
        "return dict(self.answers)",
        BITS,
    ),
    Mutation(
        "server/collector.py",
        "return {site: self.answers[site] for site in self.cohort if site in self.answers}",
        "return {site: self.answers[site] for site in self.answers}",
        "server",
    ),
    Mutation(
        "server/collected_updates.py", "            answer.weight,\n", "            1.0,\n", BITS
    ),
    Mutation(
        "worker/weight.py",
        '_KEYS = ("num_examples", "NUM_STEPS_CURRENT_ROUND")',
        '_KEYS = ("NUM_STEPS_CURRENT_ROUND",)',
        BITS,
    ),
    Mutation("aggregation/mean.py", "weight = 1.0\n", "weight = weight\n", "aggregation"),
    Mutation(
        "aggregation/clipping.py",
        "scales = [min(1.0, most / norm) if norm else 1.0 for norm in norms]",
        "scales = [most / norm if norm else 1.0 for norm in norms]",
        "aggregation",
    ),
    Mutation(
        "aggregation/krum.py",
        'np.argsort(scores, kind="stable")[:chosen]',
        'np.argsort(scores, kind="stable")[1 : chosen + 1]',
        BITS,
    ),
    Mutation(
        "aggregation/optimizers.py",
        "second += (1 - self.beta_2) * square\n",
        "second += square\n",
        BITS,
    ),
    Mutation("aggregation/optimizers.py", "else self.tau**2", "else 0.0", BITS),
    Mutation(
        "aggregation/private.py",
        "words = np.random.Philox(key=self._key, counter=step)",
        "words = np.random.Philox(key=self._key, counter=0)",
        "aggregation",
    ),
    # Seeds, samples and rounds.
    Mutation(
        "server/sampling.py",
        'text = f"flstream/task/{seed}/{site}/{round_number}/{kind}{again}"',
        'text = f"flstream/task/{seed}/{site}/{kind}{again}"',
        BITS,
    ),
    Mutation(
        "server/sampling.py",
        'random.Random(f"flstream/sites/{seed}/{round_number}")',
        'random.Random(f"flstream/sites/{seed}")',
        BITS,
    ),
    Mutation("client/seeding.py", "    random.seed(seed)\n", "", BITS),
    Mutation("client/seeding.py", "    np.random.seed(seed % 2**32)\n", "", BITS),
    Mutation(
        "server/scoring.py",
        "mean = sum(each.weight * each.metrics[name] for each in answers) / total",
        "mean = sum(each.metrics[name] for each in answers) / len(answers)",
        BITS,
    ),
    Mutation(
        "runs/stopping.py", "or count < self._patience:", "or count <= self._patience:", "runs"
    ),
    Mutation(
        "runs/best.py",
        "self._sign * value <= self._sign * self._before.value",
        "self._sign * value < self._sign * self._before.value",
        "runs",
    ),
    # What is durable, and in which order.
    Mutation(
        "model/checkpoint.py",
        "                os.fsync(self.fd)\n",
        "",
        "model",
    ),
    Mutation(
        "server/effects.py",
        '        halt_at("record")\n        self._emit(record)\n',
        '        halt_at("record")\n',
        "matrix/test_damage.py",
    ),
    Mutation(
        "server/effects.py",
        "(record.name, record.arguments) == (kind, digest)",
        "record.name == kind",
        "workflows",
    ),
    Mutation(
        "server/site_tasks.py",
        "            if state is not None:\n                self._states[site] = state\n",
        "            if state is None:\n                self._states[site] = state\n",
        BITS,
    ),
    Mutation(
        "runs/site_states.py",
        "states.remove(lambda version: version.effect > effect and version != keep)",
        "states.remove(lambda version: version.effect >= effect and version != keep)",
        "runs",
    ),
    Mutation(
        "runs/site_states.py",
        "        if flaw is not None:\n            flaws",
        "        if False:\n            flaws",
        "runs",
    ),
    Mutation(
        "runs/sound_models.py",
        "    if present != digest:",
        "    if False:",
        "server",
    ),
    Mutation(
        "runs/retention.py",
        "round_number > last - self.keep",
        "round_number >= last - self.keep",
        "runs",
    ),
    # How bytes move.
    Mutation(
        "streaming/wire.py",
        "return digest.digest()[::-1] == trailer",
        "return True",
        "streaming",
    ),
    Mutation(
        "streaming/wire.py",
        "if magic != _MAGIC or xxhash.xxh3_64_intdigest(fields) != digest:",
        "if magic != _MAGIC:",
        "streaming",
    ),
    Mutation(
        "model/layout.py",
        "yield start, min(start + step, self.nbytes)",
        "yield start, start + step",
        "model",
    ),
    Mutation(
        "model/header.py",
        "if length > min(available, MAX_HEADER_BYTES):",
        "if length > available:",
        "model",
    ),
    Mutation(
        "transport/tcp.py",
        'if not hmac.compare_digest(proof, token.proof(b"dials", greeting, answer, self._run)):',
        "if not proof:",
        "transport",
    ),
    Mutation(
        "transport/tcp.py",
        'compare_digest(theirs, token.proof(b"accepts", greeting, bytes(answer), run))',
        "compare_digest(theirs, theirs)",
        "transport",
    ),
    Mutation(
        "transport/link.py",
        "math.inf if bits is None else bits / 8 for",
        "math.inf if bits is None else bits for",
        "transport",
    ),
    # Codecs and filters.
    Mutation(
        "codecs/sparse.py",
        "if not (places[1:] > places[:-1]).all():",
        "if not (places[1:] >= places[:-1]).all():",
        "codecs",
    ),
    Mutation(
        "codecs/chain.py",
        "partial(Quantised, 4),\n",
        "partial(Quantised, 8),\n",
        BITS,
    ),
    Mutation("filters/built_in.py", "sigma * block.normals()", "block.normals()", BITS),
    # What people write and read.
    Mutation("units.py", "units[name] = 1024**power", "units[name] = 1000**power", "test_units.py"),
    Mutation("cli/status.py", "FAILED = 1", "FAILED = 2", "cli"),
    Mutation(
        "aggregation/ranked.py",
        "return min(math.floor(round(count * fraction, 9)), median_trim(count))",
        "return min(math.ceil(round(count * fraction, 9)), median_trim(count))",
        "aggregation",
    ),
    Mutation(
        "codecs/error_feedback.py",
        "numbers = numbers + read_numbers(before, place, scratch)\n",
        "numbers = numbers + 0\n",
        BITS,
    ),
    Mutation("client/proximal.py", "total * (mu / 2)", "total * mu", BITS),
    Mutation(
        "transport/link.py",
        "delay = (1 + 2 * lost) * (latency",
        "delay = (1 + lost) * (latency",
        "transport",
    ),
    Mutation(
        "model/layout.py",
        "for start in range(0, self.nbytes, step):",
        "for start in range(0, max(self.nbytes - step, 1), step):",
        "model",
    ),
    Mutation(
        "codecs/update_form.py",
        'base = self.model if params_type == "FULL" else None',
        'base = self.model if params_type != "FULL" else None',
        BITS,
    ),
    Mutation(
        "server/run.py",
        'if order == "random_without_same_in_a_row" and repeats:',
        'if order == "random" and repeats:',
        "matrix/test_bits.py workflows",
    ),
    Mutation(
        "telemetry/memory.py",
        "memory.peak_rss = max(memory.peak_rss, peak_rss)",
        "memory.peak_rss = peak_rss",
        "telemetry",
    ),
    Mutation(
        "telemetry/memory.py",
        "return max(self.peak_rss - self.idle_rss, 0) if self.idle_rss else 0",
        "return self.peak_rss",
        "telemetry report",
    ),
    Mutation("recipe/nvflare_table.py", "patience | patience\n", "patience | rounds\n", "recipe"),
    Mutation(
        "workflows/fedavg.py",
        "run.evaluate(model)",
        "run.evaluate(run.initial_model())",
        BITS,
    ),
)
