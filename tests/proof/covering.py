"""Covering arrays: few rows in which every combination of `strength` features' values occurs.

A row gives each feature one value. Rows are made one at a time, each the best of several candidates that are filled
greedily in a random order (Cohen, Dalal, Fredman and Patton 1997, AETG). Combinations that a rule forbids are not asked
for; a rule is a clause: values of some features that cannot occur together.
"""

import itertools
import random

CANDIDATES = 6


class CoveringArray:
    """features: {name: [values]}. Asks for rows with next_row() until nothing is left; forbid() adds a clause."""

    def __init__(self, features, strength=3, seed=0):
        self.features = {name: list(values) for name, values in features.items()}
        self.strength = min(strength, len(self.features))
        self.random = random.Random(seed)
        self.clauses = []  # of frozensets of (feature, value)
        self.left = {
            combination
            for names in itertools.combinations(sorted(self.features), self.strength)
            for combination in itertools.product(*([(name, value) for value in self.features[name]] for name in names))
        }
        self.num_combinations = len(self.left)
        self.num_forbidden = 0

    def combinations_of(self, row):
        return itertools.combinations(sorted(row.items()), self.strength)

    def forbid(self, clause):
        """The values of this clause cannot occur together, so neither can what contains them."""
        clause = frozenset(clause)
        self.clauses.append(clause)
        gone = {combination for combination in self.left if clause <= set(combination)}
        self.left -= gone
        self.num_forbidden += len(gone)

    def is_allowed(self, row):
        items = set(row.items())
        return not any(clause <= items for clause in self.clauses)

    def cover(self, row):
        """The row was tried; returns how many new combinations it holds."""
        before = len(self.left)
        self.left.difference_update(self.combinations_of(row))
        return before - len(self.left)

    def drop(self, combination):
        """Nothing was found that holds this combination."""
        self.left.discard(combination)
        self.num_forbidden += 1

    def _candidate(self, seed_combination):
        row = dict(seed_combination)
        names = [name for name in self.features if name not in row]
        self.random.shuffle(names)
        for name in names:
            best, best_gain = [], -1
            for value in self.features[name]:
                trial = row | {name: value}
                if not self.is_allowed(trial):
                    continue
                others = [item for item in row.items()]
                gain = sum(
                    tuple(sorted((*few, (name, value)))) in self.left
                    for few in itertools.combinations(others, self.strength - 1)
                )
                if gain > best_gain:
                    best, best_gain = [value], gain
                elif gain == best_gain:
                    best.append(value)
            if not best:
                return None
            row[name] = self.random.choice(best)
        return row

    def next_row(self):
        """The next row, or None when every combination occurred, is forbidden, or can be in no allowed row."""
        while self.left:
            # A set's order of strings differs from process to process; the rows of one seed do not.
            ordered = sorted(self.left) if len(self.left) < 2000 else None
            rows = []
            for _ in range(CANDIDATES):
                begin = self.random.choice(ordered) if ordered else min(itertools.islice(self._shuffled(), 1))
                row = self._candidate(begin) if self.is_allowed(dict(begin)) else None
                if row is not None:
                    rows.append((sum(c in self.left for c in self.combinations_of(row)), sorted(row.items())))
                elif ordered:
                    self.drop(begin)
                    break
            if rows:
                return dict(max(rows)[1])
        return None

    def _shuffled(self):
        """Combinations that are left, drawn by features and not by the order of the set."""
        names = sorted(self.features)
        while True:
            chosen = sorted(self.random.sample(names, self.strength))
            combination = tuple((name, self.random.choice(self.features[name])) for name in chosen)
            if combination in self.left:
                yield combination
