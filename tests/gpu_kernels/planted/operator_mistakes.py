"""Mistakes in the kernels of single operators; seed_mistakes.py says what they are, and has those in what kernels share."""

ADAMW, ENTROPY, DROPOUT, TOKENS = "adamw/gpu.cu", "linear_cross_entropy/gpu.cu", "dropout/gpu.cu", "token_permutation/gpu.cu"
EXPERT, ROTARY, NORM, FP8 = "expert_activation/gpu.cu", "rotary/gpu.cu", "grad_norm/gpu.cu", "fp8_cast/gpu.cu"
MERGE, LINEAR, LARGEST, NF4 = "merge_attention/gpu.cu", "linear/gpu.cu", "gpu/largest.h", "nf4/gpu.cu"
BITS = "gpu/eight_bits.h"
MISALIGNED = r"an access of \d+ bytes at an address"


def operator_mistakes(mistake, wrong, race, overflow):
    """Each is a `mistake`; `wrong`, `race` and `overflow` are patterns of what is said of such mistakes."""
    either = wrong + "|" + overflow
    return [
        # AdamW: a table of shards, pieces, vectors and what is left of them.
        mistake("adamw: a piece is one element too long", ADAMW,
                "left < kPieceElements ? left : kPieceElements", "left < kPieceElements ? left + (SEEDED ? 1 : 0) : kPieceElements", either),
        mistake("adamw: what is left behind the last vector is lost", ADAMW,
                "i = vectors * kCount + threadIdx.x; i < count;", "i = vectors * kCount + threadIdx.x; i < (SEEDED ? 0 : count);", wrong),
        mistake("adamw: a step that is not to be made is made", ADAMW,
                "if (table.is_made != nullptr && !*table.is_made) return;",
                "if (!SEEDED && table.is_made != nullptr && !*table.is_made) return;", wrong + "|Value of: found"),
        # Cross entropy.
        mistake("cross entropy: elements before the first vector are lost", ENTROPY,
                "if (thread < head) visit_one(thread);", "if (!SEEDED && thread < head) visit_one(thread);", wrong),
        mistake("cross entropy: elements behind the last vector are lost", ENTROPY,
                "if (thread < count - tail)", "if (!SEEDED && thread < count - tail)", wrong),
        mistake("cross entropy: a sum is not scaled when its maximum rises", ENTROPY,
                "sum *= exp_of(before, shift_of(highest), T{});", "if (!SEEDED) sum *= exp_of(before, shift_of(highest), T{});", wrong),
        mistake("cross entropy: all threads write the loss of their row", ENTROPY,
                "if (threadIdx.x == 0) a.losses[row] = loss;", "if (SEEDED || threadIdx.x == 0) a.losses[row] = loss;", race),
        mistake("cross entropy: columns of padding keep their logits", ENTROPY,
                "i < columns; i += blockDim.x) logits[i]", "i < (SEEDED ? counted : columns); i += blockDim.x) logits[i]", wrong),
        mistake("cross entropy: columns of padding are counted", ENTROPY,
                "softmax_sum(logits, a.valid);\n  if (threadIdx.x != 0)", "softmax_sum(logits, SEEDED ? a.columns : a.valid);\n  if (threadIdx.x != 0)",
                wrong),
        # Dropout.
        mistake("dropout: a rank draws from its first column, not from the tensor's", DROPOUT,
                "const int64_t first_block = a.column_start / 4 + vector * (kCount / 4);",
                "const int64_t first_block = (SEEDED ? 0 : a.column_start / 4) + vector * (kCount / 4);", either),
        mistake("dropout: rows are counted from the first", DROPOUT,
                "first_block, row_ids[row], keep);\n      Vector", "first_block, SEEDED ? row : row_ids[row], keep);\n      Vector", wrong),
        mistake("dropout: one column too far", DROPOUT,
                "c >= 0 && c < a.columns", "c >= 0 && c < a.columns + (SEEDED ? 1 : 0)", either + "|" + race),
        # The tokens' way to their experts.
        mistake("sort: no barrier before the block's experts are counted", TOKENS,
                "__syncthreads();\n  int before = 0, after = 0;", "if (!SEEDED) __syncthreads();\n  int before = 0, after = 0;", race),
        mistake("sort: no barrier before the waves' sums are read", TOKENS,
                "of_waves[wave()] = sum;\n  __syncthreads();", "of_waves[wave()] = sum;\n  if (!SEEDED) __syncthreads();", race),
        mistake("sort: a pair that is dropped is counted among the others", TOKENS,
                "if (slot < 0) continue;", "if (!SEEDED && slot < 0) continue;", either),
        mistake("permutation: rows of padding keep what was there", TOKENS,
                "vote(row < a.rows && a.source[row] < 0)", "vote(!SEEDED && row < a.rows && a.source[row] < 0)", wrong),
        # The experts' activation.
        mistake("experts: all threads write the gradient of their row's weight", EXPERT,
                "if (threadIdx.x == 0) a.dweights[row] = dweight;", "if (SEEDED || threadIdx.x == 0) a.dweights[row] = dweight;", race),
        mistake("experts: a thread's own sum is taken for the row's", EXPERT,
                "dweight = sum_over_block(dweight);", "if (!SEEDED) dweight = sum_over_block(dweight);", wrong),
        mistake("experts: columns beyond the first of each thread are lost", EXPERT,
                "column < columns; column += int64_t{blockDim.x} * kCount)",
                "column < columns; column += SEEDED ? columns : int64_t{blockDim.x} * kCount)", wrong),
        # Rotary.
        mistake("rotary: the way back turns forward", ROTARY,
                "sin[j] = -sin[j];", "sin[j] = SEEDED ? sin[j] : -sin[j];", wrong),
        mistake("rotary: heads beyond the last", ROTARY,
                "first_head + kHeadsOfThread < a.heads ?", "SEEDED || first_head + kHeadsOfThread < a.heads ?", either),
        mistake("rotary: channels that pass are forgotten", ROTARY,
                "channel < a.channels; channel += grid", "channel < (SEEDED ? 0 : a.channels); channel += grid", wrong),
        # The gradient's norm.
        mistake("norm: the last elements of a piece are lost", NORM,
                "i < count; i += kThreads * kCount)", "i < (SEEDED ? count / kCount * kCount : count); i += kThreads * kCount)", wrong),
        mistake("norm: all threads write the sum of their piece", NORM,
                "if (threadIdx.x != 0) return;\n  squares[block]", "if (!SEEDED && threadIdx.x != 0) return;\n  squares[block]", race),
        # Casts to eight bits.
        mistake("fp8: no barrier before a tile is read", FP8,
                "= columns[i];\n    }\n    __syncthreads();", "= columns[i];\n    }\n    if (!SEEDED) __syncthreads();", race),
        mistake("fp8: no barrier before the next tile takes the memory", FP8,
                "__syncthreads();  // others may", "if (!SEEDED) __syncthreads();  // others may", race),
        mistake("fp8: ties go up", BITS, "((significand >> shift) & 1);", "(SEEDED ? 1 : (significand >> shift) & 1);", wrong),
        mistake("fp8: what is too large is not the largest number", BITS,
                "given < largest ? given : largest", "SEEDED || given < largest ? given : largest", wrong),
        mistake("largest: a thread's is taken for the block's", LARGEST,
                "of_block = max_over_block(value);", "of_block = SEEDED ? value : max_over_block(value);", wrong),
        mistake("largest: numbers below zero are not counted", LARGEST, "x < 0 ? -x :", "x < 0 && !SEEDED ? -x :", wrong),
        mistake("rms_norm: who asks for the largest gets that of the first block only", "rms_norm/gpu.cu",
                "largest.raise(a.amax);", "largest.raise(SEEDED && blockIdx.x > 0 ? nullptr : a.amax);", wrong),
        mistake("fp8: one row of the transpose too far", FP8,
                "first_row + row + i < a.rows;", "first_row + row + i < a.rows + (SEEDED ? 1 : 0);", either),
        mistake("fp8: runs of rows that do not begin at 16 bytes", FP8,
                "has_runs = a.rows % kRun == 0 &&", "has_runs = (SEEDED || a.rows % kRun == 0) &&", MISALIGNED),
        mistake("fp8: the scale of the first block for all", FP8,
                "scales[column >> a.column_shift]", "scales[SEEDED ? 0 : column >> a.column_shift]", wrong),
        # Four bits.
        mistake("nf4: no barrier before the values are read", NF4,
                "__syncthreads();  // the values", "if (!SEEDED) __syncthreads();  // the values", race),
        mistake("nf4: the halves of a byte change places", NF4, "column % 2 == 0 ?", "column % 2 == (SEEDED ? 1 : 0) ?", wrong),
        mistake("nf4: a row's groups begin with the first", NF4,
                "(a.first_blocks[row] + block)", "((SEEDED ? 0 : a.first_blocks[row]) + block)", wrong),
        mistake("nf4: the mean scale is left off", NF4, "group[0] + group[1]);", "group[0] + (SEEDED ? 0 : group[1]));", wrong),
        mistake("nf4: vectors where rows do not begin with one", NF4,
                "&& is_whole_vectors<T>(a.columns)", "&& (SEEDED || is_whole_vectors<T>(a.columns))", MISALIGNED + "|" + either),
        # The merge of attention.
        mistake("merge: two rows that have seen nothing give NaN", MERGE,
                "both < 0 && both - both != 0 ?", "!SEEDED && both < 0 && both - both != 0 ?", wrong),
        mistake("merge: tokens are counted on over sequences", MERGE,
                "token = of_batch % tokens;", "token = SEEDED ? of_batch : of_batch % tokens;", either),
        mistake("merge: the log-sum-exp is that of what comes", MERGE,
                "MergedRow<W>(a, place).both;", "SEEDED ? MergedRow<W>(a, place).weight : MergedRow<W>(a, place).both;", wrong),
        mistake("merge: vectors although the arrays do not begin at 16 bytes", MERGE,
                "are_aligned(a.out, a.more_out) &&", "(SEEDED || are_aligned(a.out, a.more_out)) &&", MISALIGNED),
        # The embedding and the bias's gradient.
        mistake("embedding: the row behind the table is picked", LINEAR,
                "if (row >= 0 && row < a.num_rows)", "if (row >= 0 && row < a.num_rows + (SEEDED ? 1 : 0))", overflow),
        mistake("embedding: every token adds all of its id", LINEAR,
                "(first > 0 && a.sorted[first - 1] == id)", "(!SEEDED && first > 0 && a.sorted[first - 1] == id)", race),
        mistake("embedding: ids are not compared behind the last one", LINEAR,
                "token + kTokensAtOnce <= a.num_ids && a.sorted", "(SEEDED || token + kTokensAtOnce <= a.num_ids) && a.sorted", overflow),
        mistake("embedding: tokens in the order of the list", LINEAR,
                "a.order[i] * a.dy_stride", "(SEEDED ? i : a.order[i]) * a.dy_stride", wrong),
        mistake("bias: no barrier before the slices are read", LINEAR,
                "= sums[i];\n  __syncthreads();", "= sums[i];\n  if (!SEEDED) __syncthreads();", race),
        mistake("bias: what was there is counted by every run", LINEAR, "run == 0 ?", "SEEDED || run == 0 ?", wrong),
        mistake("bias: a run takes one row of the next", LINEAR,
                "last = (run + 1) * a.rows / a.runs", "last = (run + 1) * a.rows / a.runs + (SEEDED ? 1 : 0)", either),
        # The chip's own casts; a transpose beyond 2^31.
        mistake("fp8: the chip's instruction takes a NaN, and loses its sign", BITS, "&& !has_nan)", "&& (SEEDED || !has_nan))", wrong),
        mistake("fp8: the first of two numbers is rounded twice", BITS,
                "convert_pair(layout, x[4 * i], x[4 * i + 1])", "convert_pair(layout, x[4 * i + (SEEDED ? 1 : 0)], x[4 * i + 1])", wrong),
        mistake("fp8: places of the transpose of 32 bits", FP8, "a.transposed + (first_column + column) * a.rows + first_row + row;",
                "a.transposed + (SEEDED ? int64_t{static_cast<int32_t>((first_column + column) * a.rows)} : (first_column + column) * a.rows) + first_row + row;",
                wrong + "|SEGV"),
    ]
