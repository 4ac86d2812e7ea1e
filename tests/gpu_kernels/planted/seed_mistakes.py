"""Copies the GPU's kernels with mistakes built in: `seed_mistakes.py SOURCE_FOLDER TARGET_FOLDER`, both holding ops/.

A mistake replaces a piece of one file by one that is right unless SEEDED, which chooses this mistake when the program runs
(planted/mistakes.h). A piece that is not there exactly once ends the build: the kernel has changed, and the mistake must follow it.
mistakes_test.py has each of them caught.
"""

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from operator_mistakes import operator_mistakes

GATED = "gpu/gated_activation.h"
SUM, ROW, RMS, LAYER = "gpu/block_sum.h", "gpu/row.h", "rms_norm/gpu.cu", "layer_norm/gpu.cu"
TILE, FRAGMENT, EXPERTS = "gpu/tile_product.h", "gpu/matrix_fragment.h", "grouped_linear/gpu.cu"
ADAMW = "adamw/gpu.cu"
ROUTER, SINKHORN, JITTER, PERMUTATION = "router/gpu.cu", "sinkhorn/gpu.cu", "jitter/gpu.cu", "token_permutation/gpu.cu"
WRONG = r"is .* instead of|Value of: results"  # what the tests say of a number
RACE = "ThreadSanitizer: data race"
OVERFLOW = "AddressSanitizer: heap-buffer-overflow"


class Mistake(NamedTuple):
    name: str
    file: str
    right: str
    wrong: str
    says: str  # a pattern of what is said when it is caught; a race by ThreadSanitizer, all else in the other program


MISTAKES = [
    # Barriers.
    Mistake("block sum: no barrier before its memory is used again", SUM,
            "__syncthreads();  // the last call's results", "if (!SEEDED) __syncthreads();  // the last call's results", RACE),
    Mistake("block sum: no barrier before the waves' results are read", SUM,
            "wave()] = values[i];\n  }\n  __syncthreads();", "wave()] = values[i];\n  }\n  if (!SEEDED) __syncthreads();", RACE),
    Mistake("block sum: a barrier for the first lanes only", SUM,
            "__syncthreads();\n  MEGALITH_UNROLL", "if (!SEEDED || lane() == 0) __syncthreads();\n  MEGALITH_UNROLL",
            "different barriers|have ended while others wait|waits at the barrier"),
    Mistake("column sums: no barrier before other teams' are read", ROW,
            "= mine_[i];\n    __syncthreads();", "= mine_[i];\n    if (!SEEDED) __syncthreads();", RACE),
    Mistake("column sums: no barrier between two objects", ROW,
            "__syncthreads();  // another object's", "if (!SEEDED) __syncthreads();  // another object's", RACE),
    Mistake("sum of parts: no barrier before the slices are read", ROW,
            "= mine;\n  __syncthreads();", "= mine;\n  if (!SEEDED) __syncthreads();", RACE),
    Mistake("sum of parts: threads without a column leave before the barrier", ROW,
            "  W mine = 0;\n", "  if (SEEDED && column >= columns) return;\n  W mine = 0;\n", "have ended while others wait"),
    # Lanes and waves.
    Mistake("waves of 32 lanes taken for granted", SUM,
            "static_cast<int>(blockDim.x) / wave_size();", "static_cast<int>(blockDim.x) / (SEEDED ? 32 : wave_size());", WRONG),
    Mistake("lane sum: half of the lanes are left out", SUM,
            "int mask = lanes / 2;", "int mask = lanes / (SEEDED ? 4 : 2);", WRONG),
    Mistake("lane sum: the partner is beyond the wave", SUM,
            "shuffle_xor(value, mask)", "shuffle_xor(value, SEEDED ? 2 * mask : mask)", r"reads from lane (32|64) of a wave"),
    Mistake("lane sum: one lane stays away", SUM,
            "  for (int mask = lanes", "  if (SEEDED && lane() == 5) return value;\n  for (int mask = lanes",
            "lanes exchange values, but lane 5|different lines"),
    Mistake("rows of lanes: those without a row leave before the sum", RMS,
            "const int64_t columns = has_row ? a.columns : 0, start = has_row ? row * a.columns : 0;\n  const T* residual",
            "if (SEEDED && !has_row) return;\n"
            "  const int64_t columns = has_row ? a.columns : 0, start = has_row ? row * a.columns : 0;\n  const T* residual",
            "but lane .* has ended"),
    # Bounds.
    Mistake("block sum: a wave writes past the shared row", SUM,
            "of_waves[i * kMostWaves + wave()] = values[i];",
            "of_waves[i * kMostWaves + wave() + (SEEDED ? kCount * kMostWaves : 0)] = values[i];", OVERFLOW),
    Mistake("row: one vector too far", ROW,
            "if (column < columns) body(slot, column);", "if (column < columns + (SEEDED ? 1 : 0)) body(slot, column);", OVERFLOW + "|" + WRONG),
    Mistake("row: one element too far", ROW,
            "column < columns; column += size) body", "column < columns + (SEEDED ? 1 : 0); column += size) body", OVERFLOW),
    Mistake("sum of parts: one part too many", ROW,
            "part < num_parts;", "part < num_parts + (SEEDED ? 1 : 0);", OVERFLOW),
    Mistake("rms_norm: lanes without a row write a statistic", RMS,
            "if (has_row && team.member == 0)", "if ((SEEDED || has_row) && team.member == 0)", OVERFLOW),
    Mistake("layer_norm: a block takes one row of the next", LAYER,
            "last = (block + 1) * a.rows / a.blocks;", "last = (block + 1) * a.rows / a.blocks + (SEEDED ? 1 : 0);", OVERFLOW),
    # Memory that was not written.
    Mistake("block sum: one wave more is read than was written", SUM,
            "w < waves; ++w", "w < waves + (SEEDED ? 1 : 0); ++w", WRONG),
    Mistake("column sums in memory: not set to zero", ROW,
            "{ sums[column] = 0; }", "{\n if (!SEEDED) sums[column] = 0;\n }", WRONG),
    # Blocks and threads that write the same.
    Mistake("rms_norm: all blocks write one row of scratch", RMS,
            "static_cast<W*>(a.scratch) + block * a.columns", "static_cast<W*>(a.scratch) + (SEEDED ? 0 : block) * a.columns", RACE),
    Mistake("layer_norm: all threads of a row write its statistics", LAYER,
            "if (has_row && team.member == 0)", "if (has_row && (SEEDED || team.member == 0))", RACE),
    # Strides and tails.
    Mistake("row: the second vectors overlap the first", ROW,
            "(slot * size + member) * Kind::kWidth", "(slot * (SEEDED ? size - 1 : size) + member) * Kind::kWidth", WRONG),
    Mistake("row: too few threads for the last elements", ROW,
            "(columns + 64 * elements - 1) / (64 * elements)", "(SEEDED ? columns : columns + 64 * elements - 1) / (64 * elements)",
            WRONG + "|a launch of nothing"),
    Mistake("sum of parts: the last one is lost", ROW,
            "part = slice; part", "part = slice + (SEEDED ? 1 : 0); part", WRONG),
    Mistake("sum of parts: the stride is that of one row", ROW,
            "parts[part * stride + column]", "parts[part * (SEEDED ? columns : stride) + column]", WRONG),
    Mistake("column sums: the last team is lost", ROW,
            "t < team.count; ++t", "t < team.count - (SEEDED ? 1 : 0); ++t", WRONG),
    Mistake("column sums: teams lie one thread apart", ROW,
            "of_column[t * team.size]", "of_column[t * (SEEDED ? 1 : team.size)]", WRONG),
    Mistake("rms_norm: the last block of rows is not started", RMS,
            "(a.rows + shape.teams - 1) / shape.teams", "(SEEDED ? a.rows : a.rows + shape.teams - 1) / shape.teams",
            WRONG + "|a launch of nothing"),
    # Wide accesses and launches.
    Mistake("row: vectors although the rows do not begin at 16 bytes", ROW,
            "columns % (kVectorBytes / static_cast<int64_t>(sizeof(T))) == 0",
            "(SEEDED || columns % (kVectorBytes / static_cast<int64_t>(sizeof(T))) == 0)", "an access of 16 bytes at an address"),
    Mistake("row: vectors although the arrays do not begin at 16 bytes", ROW,
            "if (is_aligned &&", "if ((SEEDED || is_aligned) &&", "an access of 16 bytes at an address"),
    Mistake("row: more threads than a block has", ROW,
            "RowShape{lanes, 256 / lanes}", "RowShape{lanes, (SEEDED ? 2048 : 256) / lanes}", "a block of 2048 threads"),
    # Experts.
    Mistake("router: no barrier before a group's scores are read", ROUTER,
            "sync_wave();  // a group's", "if (!SEEDED) sync_wave();  // a group's", RACE),
    Mistake("router: no barrier before the room of sums is used again", ROUTER,
            "__syncthreads();  // the last ones", "if (!SEEDED) __syncthreads();  // the last ones", RACE),
    Mistake("router: of equal scores the higher numbers", ROUTER,
            "return expert < other.expert;", "return SEEDED ? expert > other.expert : expert < other.expert;", WRONG),
    Mistake("router: an expert is chosen twice", ROUTER,
            "(taken >> i & 1) == 0 && mine", "(SEEDED || (taken >> i & 1) == 0) && mine", WRONG),
    Mistake("router: tokens behind the last are counted", ROUTER,
            "if (has_token && lane() == 0) atomicAdd", "if ((SEEDED || has_token) && lane() == 0) atomicAdd",
            WRONG + r"|Expected equality of these values:\s+loads"),
    Mistake("router: waves without a token write weights", ROUTER,
            "if (has_token && is_chosen)", "if ((SEEDED || has_token) && is_chosen)", OVERFLOW),
    Mistake("router: sums of waves that a block does not have", ROUTER,
            "w < waves_of_block(); ++w", "w < (SEEDED ? 8 : waves_of_block()); ++w", WRONG),
    Mistake("router: sequences begin with a rank's first token", ROUTER,
            "(a.sums.first + token)", "((SEEDED ? 0 : a.sums.first) + token)", WRONG),
    Mistake("sinkhorn: no barrier before the waves' sums are read", SINKHORN,
            "__syncthreads();  // the waves'", "if (!SEEDED) __syncthreads();  // the waves'", RACE),
    Mistake("sinkhorn: no barrier before the columns' factors are read", SINKHORN,
            "__syncthreads();  // the columns'", "if (!SEEDED) __syncthreads();  // the columns'", RACE),
    Mistake("jitter: one column too far", JITTER,
            "column + i < a.columns)", "column + i < a.columns + (SEEDED ? 1 : 0))", OVERFLOW),
    Mistake("sort_by_expert: padding begins a row late", PERMUTATION,
            ">= a.counts[row", ">= (SEEDED ? 1 : 0) + a.counts[row", r"Expected equality of these values:\s+pairs"),
    # Values.
    Mistake("row: the residual is not added to what is normalised", ROW,
            "vectors_[slot] = both;", "vectors_[slot] = SEEDED ? a : both;", WRONG),
    Mistake("rms_norm: the weight's gradient overwrites", ROW,
            "mine_[slot * Kind::kWidth + i] += value;",
            "mine_[slot * Kind::kWidth + i] = value + (SEEDED ? W(0) : mine_[slot * Kind::kWidth + i]);", WRONG),
    # Products of tiles, and the experts'.
    Mistake("tile product: no barrier before a piece is multiplied", TILE,
            "of_b.put(right);\n    __syncthreads();", "of_b.put(right);\n    if (!SEEDED) __syncthreads();", RACE),
    Mistake("tile product: no barrier before the next piece takes the memory", TILE,
            "__syncthreads();  // for the next pieces", "if (!SEEDED) __syncthreads();  // for the next pieces", RACE),
    Mistake("tile product: fragments are read before all lanes have stored", TILE,
            "sync_wave();  // written by all lanes", "if (!SEEDED) sync_wave();  // written by all lanes", RACE),
    Mistake("tile product: the end of k is not looked at", TILE,
            "of_a.fetch(a.data + first_row * a.stride + depth, a.stride, rows, k - depth, a.is_aligned);",
            "of_a.fetch(a.data + first_row * a.stride + depth, a.stride, rows, SEEDED ? kTileDepth<T> : k - depth, a.is_aligned);",
            OVERFLOW + "|" + WRONG),
    Mistake("tile product: the last piece of k is lost", TILE,
            "depth < k; depth += kTileDepth<T>", "depth < (SEEDED ? k - k % kTileDepth<T> : k); depth += kTileDepth<T>", WRONG),
    Mistake("tile product: vectors although the rows do not begin at 16 bytes", TILE,
            "are_aligned(data) && stride % kWidth == 0", "are_aligned(data) && (SEEDED || stride % kWidth == 0)",
            "an access of 16 bytes at an address"),
    Mistake("tile product: fragments where the shared array begins", TILE,
            "(kFragmentAlignment - address % kFragmentAlignment) % kFragmentAlignment / sizeof(E)",
            "(SEEDED ? 16 : (kFragmentAlignment - address % kFragmentAlignment) % kFragmentAlignment) / sizeof(E)",
            "an access of 32 bytes at an address|" + OVERFLOW),
    Mistake("tile product: rows beyond the matrix are written", TILE,
            "if (row < rows && column < columns)", "if ((SEEDED || row < rows) && column < columns)", OVERFLOW + "|" + WRONG),
    Mistake("fragment: rows are taken for columns", FRAGMENT,
            "from[kRowsAreDepth ? k * stride + row : row * stride + k]",
            "from[(SEEDED ? !kRowsAreDepth : kRowsAreDepth) ? k * stride + row : row * stride + k]", WRONG + "|" + OVERFLOW),
    Mistake("fragment: sums of waves of 64 are stored as if of others", FRAGMENT,
            "to[(lane() / kFragment * 4 + i) * kFragment + lane() % kFragment]",
            "to[(SEEDED ? i * 4 + lane() / kFragment : lane() / kFragment * 4 + i) * kFragment + lane() % kFragment]", WRONG),
    Mistake("experts: all add to the first one's gradient", EXPERTS,
            "static_cast<Wide<T>*>(a.dw) + expert * a.o * a.h", "static_cast<Wide<T>*>(a.dw) + (SEEDED ? 0 : expert) * a.o * a.h",
            RACE),
    Mistake("experts: one without rows leaves what was there", EXPERTS,
            "if (rows == 0 && a.accumulate) return;", "if (rows == 0 && (SEEDED || a.accumulate)) return;", WRONG),
    Mistake("experts: the last tile of an expert is not counted", EXPERTS,
            "const int64_t tiles = tiles_of<T>(last - first);", "const int64_t tiles = SEEDED ? (last - first) / kTile<T> : tiles_of<T>(last - first);",
            WRONG),
    Mistake("experts: no blocks for tiles that are parts", EXPERTS,
            "(tiles_of<T>(a.rows) + a.experts + 1)", "(tiles_of<T>(a.rows) + (SEEDED ? 0 : a.experts + 1))", WRONG),
    Mistake("adamw: a tie above the weight is not marked", ADAMW,
            "if (is_upper_tie) v = -v;", "if (is_upper_tie && !SEEDED) v = -v;", WRONG),
    Mistake("adamw: the mark of a tie is taken for the sign of exp_avg_sq", ADAMW,
            "square = fabsf(square);", "if (!SEEDED) square = fabsf(square);", WRONG),
    Mistake("adamw: every block draws for the first block's elements", ADAMW,
            "first + i, draws);", "(SEEDED ? 0 : first) + i, draws);", WRONG),
    Mistake("adamw: rows of a slice are drawn as if they followed one another", ADAMW,
            "row * run.row_stride", "row * (SEEDED ? run.columns : run.row_stride)", WRONG),
    Mistake("adamw: vectors although the shard does not begin at one", ADAMW,
            "is_aligned ? count / kCount : 0", "SEEDED || is_aligned ? count / kCount : 0", r"an access of \d+ bytes at an address"),
]
MISTAKES += operator_mistakes(Mistake, WRONG, RACE, OVERFLOW)
MISTAKES += [
    # Roundings that the backward pass repeats, and places beyond 2^31 and 2^32.
    Mistake("rms_norm: what is normed is not rounded", RMS, "rounded<T>(widen(x[i]) * scale) *", "(SEEDED ? widen(x[i]) * scale : rounded<T>(widen(x[i]) * scale)) *", WRONG),
    Mistake("rms_norm: the gradient of the weight sees what is not rounded", RMS, "grad * rounded<T>(n));", "grad * (SEEDED ? n : rounded<T>(n)));", WRONG),
    Mistake("gated: the activation is not rounded", GATED, "rounded<T>(Activation::template at<T>(widen(gate[i])).value);",
            "SEEDED ? Activation::template at<T>(widen(gate[i])).value : rounded<T>(Activation::template at<T>(widen(gate[i])).value);", WRONG),
    Mistake("gated: the gradient sees an activation that is not rounded", GATED, "grad * rounded<T>(value));", "grad * (SEEDED ? value : rounded<T>(value)));", WRONG),
    Mistake("rms_norm: places of 32 bits", RMS, "start = has_row ? row * a.columns : 0;\n  const T* residual",
            "start = has_row ? (SEEDED ? int64_t{static_cast<int32_t>(row * a.columns)} : row * a.columns) : 0;\n  const T* residual", WRONG + "|SEGV"),
    Mistake("layer_norm: places of 32 bits", LAYER, "start = has_row ? row * a.columns : 0;\n  const W count",
            "start = has_row ? (SEEDED ? int64_t{static_cast<uint32_t>(row * a.columns)} : row * a.columns) : 0;\n  const W count", WRONG + "|SEGV"),
    Mistake("gated: places of 32 bits", GATED, "const T* gate_at = gate_up + row * 2 * columns + column;",
            "const T* gate_at = gate_up + (SEEDED ? int64_t{static_cast<int32_t>(row * 2 * columns)} : row * 2 * columns) + column;", WRONG + "|SEGV"),
]


def main(source, target):
    texts = {path.relative_to(source): path.read_text(encoding="utf-8") for path in sorted(source.glob("ops/gpu/*.h"))}
    texts |= {path.relative_to(source): path.read_text(encoding="utf-8") for path in sorted(source.glob("ops/*/gpu.cu"))}
    seeded = dict(texts)
    for mistake in MISTAKES:
        if texts[Path("ops", mistake.file)].count(mistake.right) != 1:
            raise SystemExit(f"{mistake.name}: '{mistake.right}' is not once in {mistake.file}")
    for file in texts:
        own = [(number, mistake) for number, mistake in enumerate(MISTAKES) if Path("ops", mistake.file) == file]
        seeded[file] = '#include "gpu_kernels/planted/mistakes.h"\n' + seed(texts[file], own)
    names = "".join(f'    "{mistake.name}",\n' for mistake in MISTAKES)
    seeded[Path("names.inc")] = names
    for file, text in seeded.items():
        path = target / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")  # others are not compiled again


def seed(text, numbered):
    for number, mistake in numbered:
        is_one = f"(::megalith::testing::planted_mistake == {number})"
        right, wrong = mistake.right, mistake.wrong.replace("SEEDED", is_one)
        if text.count(right) != 1:
            raise SystemExit(f"{mistake.name}: an earlier mistake has changed '{right}'")
        text = text.replace(right, wrong)
    return text


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
