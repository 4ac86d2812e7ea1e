"""Copies src/nn and src/optim with mistakes built in: `seed_mistakes.py SOURCE_FOLDER… TARGET_FOLDER`.

A mistake replaces an expression of one file by one that is right unless SEEDED, which chooses this mistake. An expression
that is not there exactly once ends the build: the source has changed, and the mistake must follow it.
"""

import sys
from pathlib import Path

# name, file, pairs of (as it is, with the mistake)
MISTAKES = [
    (
        "row linear: bias added on every tp rank",
        "linear.cc",
        [
            (
                "at::Tensor y = layer.recipe_->forward(x, weight, {})",
                "at::Tensor y = layer.recipe_->forward(x, weight, SEEDED ? bias : at::Tensor())",
            ),
            ("return bias.defined() ? y.add_(bias) : y;", "return bias.defined() && !SEEDED ? y.add_(bias) : y;"),
        ],
    ),
    (
        "linear: weight gradient overwrites",
        "linear.cc",
        [("dy, product.x, target.accumulate)", "dy, product.x, !SEEDED && target.accumulate)")],
    ),
    (
        "linear: deferred weight gradients lost",
        "linear.cc",
        [("layer.deferred_->defer([", "if (!SEEDED) layer.deferred_->defer([")],
    ),
    (
        "embedding: vocabulary begins one row late",
        "embedding.cc",
        [("start_(weight.local_start(*tp_))", "start_(weight.local_start(*tp_) + (SEEDED && tp_->rank() > 0))")],
    ),
    (
        "embedding: gradient overwrites the tied head's",
        "embedding.cc",
        [("if (!target.accumulate) target.buffer.zero_();", "if (SEEDED || !target.accumulate) target.buffer.zero_();")],
    ),
    (
        "loss: vocabulary begins one row late",
        "lm_head.cc",
        [("local_start_(weight.local_start(*tp_))", "local_start_(weight.local_start(*tp_) + (SEEDED && tp_->rank() > 0))")],
    ),
    (
        "loss: padding rows take part in the softmax",
        "lm_head.cc",
        [
            (
                "local_valid_(weight.local_valid_rows(*tp_))",
                "local_valid_(SEEDED ? weight.local_rows(*tp_) : weight.local_valid_rows(*tp_))",
            )
        ],
    ),
    (
        "loss: softmax sums not brought to the common maximum",
        "lm_head.cc",
        [("local.sum_exp * (local.row_max - row_max).exp()", "local.sum_exp * ((local.row_max - row_max) * (SEEDED ? 0 : 1)).exp()")],
    ),
    (
        "attention dropout keyed by the rank's own head numbers",
        "attention_core.cc",
        [("head_start_(num_heads * context", "head_start_((SEEDED ? 0 : num_heads) * context")],
    ),
    (
        "hidden dropout keyed by the rank's own token numbers",
        "dropout.cc",
        [("tp_rank_(context.is_sequence_parallel ?", "tp_rank_(context.is_sequence_parallel && !SEEDED ?")],
    ),
    (
        "norm weight not marked as partial over tp",
        "norm.cc",
        [("if (token_split > 1 || (is_of_heads && tp > 1)) placement", "if ((token_split > 1 || (is_of_heads && tp > 1)) && !SEEDED) placement")],
    ),
    (
        "tied weight reduced after its first contribution",
        "parameter.cc",
        [
            (
                "is_last_microbatch_ && num_arrived_ == num_expected_ && ready_hook_",
                "is_last_microbatch_ && (SEEDED || num_arrived_ == num_expected_) && ready_hook_",
            )
        ],
    ),
    (
        "context parallelism: positions of the keys one off",
        "context_attention.cc",
        [
            (
                "mask.key_positions = part.keys.of(positions, 0);",
                "mask.key_positions = part.keys.of(positions, 0) + (SEEDED ? 1 : 0);",
            )
        ],
    ),
    (
        "context parallelism: the seen half of a part taken for the unseen one",
        "context_attention.cc",
        [("key_chunks = zigzag_chunks(size, source);", "key_chunks = zigzag_chunks(size, SEEDED ? size - 1 - source : source);")],
    ),
    (
        "context parallelism: parts merged as if each had the same weight",
        "context_attention.cc",
        [(", part_out, part_lse,", ", part_out, SEEDED ? part.queries.of(sum->lse, 2).clone() : part_lse,")],
    ),
    (
        "context parallelism: the log-sum-exp is that of the first part",
        "context_attention.cc",
        [("ops::merge_attention_(part.queries.of(sum->out, 1), part.queries.of(sum->lse, 2),",
          "ops::merge_attention_(part.queries.of(sum->out, 1), SEEDED ? part.queries.of(sum->lse, 2).clone() : part.queries.of(sum->lse, 2),")],
    ),
    (
        "context parallelism: documents of the wrong rank",
        "context_attention.cc",
        [
            (
                "zigzag_shard(key_documents, 1, size, source)",
                "zigzag_shard(key_documents, 1, size, SEEDED ? ring_->rank() : source)",
            )
        ],
    ),
    (
        "context parallelism: sums of dk and dv lost at the last hop",
        "context_attention.cc",
        [("arriving.first.to(heads.k.scalar_type())", "(SEEDED ? sums : arriving).first.to(heads.k.scalar_type())")],
    ),
    (
        "context parallelism: dropout keyed by the head's number on the rank",
        "context_attention.cc",
        [("own.dropout.head_start += heads.q.size(2) *", "own.dropout.head_start += (SEEDED ? 0 : 1) * heads.q.size(2) *")],
    ),
    (
        "context parallelism: heads in the wrong order after the all-to-all",
        "context_attention.cc",
        [
            (
                "heads_outside.permute({1, 2, 0, 3, 4}).reshape(",
                "heads_outside.permute({1, 2, SEEDED ? 3 : 0, SEEDED ? 0 : 3, 4}).reshape(",
            )
        ],
    ),
    (
        "router weight not marked as partial over tp",
        "expert_router.cc",
        [("if (groups_->tp->size() > 1) weight.partial", "if (groups_->tp->size() > 1 && !SEEDED) weight.partial")],
    ),
    (
        "capacity: decided by each rank for its own tokens",
        "expert_router.cc",
        [
            (
                "keep = keep_within_capacity(experts, weights, routing.capacity, tokens);",
                "keep = SEEDED ? within_capacity(experts, weights, options_.expert_count(), "
                "expert_capacity(experts.size(0), options_)) "
                ": keep_within_capacity(experts, weights, routing.capacity, tokens);",
            )
        ],
    ),
    (
        "expert bias: the busiest experts become busier",
        "expert_router.cc",
        [("(wide.mean() - wide).sign()", "(SEEDED ? wide - wide.mean() : wide.mean() - wide).sign()")],
    ),
    (
        "balance of experts: the objective counted by every rank of tp and cp",
        "expert_router.cc",
        [
            (
                "terms.objective * forward.objective_scale)",
                "terms.objective * (forward.objective_scale * (SEEDED ? groups_->tp_cp->size() : 1)))",
            )
        ],
    ),
    (
        "balance of experts: a tp rank's tokens counted for the first sequences",
        "microbatch_tokens.cc",
        [("sums.first = first_;", "sums.first = SEEDED ? 0 : first_;")],
    ),
    (
        "tokens joined over cp without the zig-zag",
        "microbatch_tokens.cc",
        [
            (
                "return zigzag_join(rows.reshape({cp_size_, b_, s_, columns})).view({num_tokens(), columns});",
                "const at::Tensor parts = rows.reshape({cp_size_, b_, s_, columns}); "
                "return (SEEDED ? parts.transpose(0, 1).reshape({b_, -1, columns}) : zigzag_join(parts))"
                ".reshape({num_tokens(), columns});",
            )
        ],
    ),
    (
        "all-to-all of tokens: counts of what comes transposed",
        "token_dispatcher.cc",
        [
            (
                ".repeat_interleave(coming.view(-1), 0, num_rows)",
                ".repeat_interleave(SEEDED ? coming.t().reshape(-1) : coming.view(-1), 0, num_rows)",
            )
        ],
    ),
    (
        "all-to-all of tokens: rows of the other parts of an expert forgotten",
        "token_dispatcher.cc",
        [
            (
                "return state->sent ? state->sent->combine(rows, kernels_) : rows;",
                "if (!state->sent) return rows;\n  RowOrder sent = *state->sent;\n"
                "  if (SEEDED) sent.slots = sent.slots.view({sent.slots.size(0), -1, sent.copies}).select(2, 0).contiguous();\n"
                "  return sent.combine(rows, kernels_);",
            )
        ],
    ),
    (
        "all-gather of tokens: experts of another rank",
        "token_dispatcher.cc",
        [
            (
                "first = group_->rank() / etp_ * num_local;",
                "first = (SEEDED ? ep_ - 1 - group_->rank() / etp_ : group_->rank() / etp_) * num_local;",
            )
        ],
    ),
    (
        "experts: dealt out to the ranks in turn",
        "expert_placement.cc",
        [
            (
                "cut.first_expert + j);",
                "SEEDED ? j * (cut.num_experts / cut.num_local) + cut.first_expert / cut.num_local : cut.first_expert + j);",
            )
        ],
    ),
    (
        "experts: the first part of an expert on every rank",
        "grouped_experts.cc",
        [(".first_column = part * ffn,", ".first_column = (SEEDED ? 0 : part) * ffn,")],
    ),
    (
        "experts: weight gradient overwrites",
        "grouped_linear.cc",
        [("dy, x, offsets, target.accumulate)", "dy, x, offsets, !SEEDED && target.accumulate)")],
    ),
    (
        "experts: those that lie as dense layers reduced as if spread, and the other way round",
        "grouped_experts.cc",
        [("const AxisSet axes = is_dense_view ?", "const AxisSet axes = is_dense_view != SEEDED ?")],
    ),
    (
        "adapters of experts: what is cut taken for whole, and the other way round",
        "expert_adapter.cc",
        [("partial_axes = is_cut ? site.axes", "partial_axes = is_cut != SEEDED ? site.axes")],
    ),
    (
        "adapters: B cut along the wrong axis",
        "low_rank_adapter.cc",
        [
            (
                "const LinearOptions up{.role = site.role == LinearRole::kColumn ?",
                "const LinearOptions up{.role = (site.role == LinearRole::kColumn) != SEEDED ?",
            )
        ],
    ),
    (
        "LoRA's formula: dropout behind A",
        "low_rank_adapter.cc",
        [
            (
                "const at::Tensor low = pair.down->forward(read(x, row_ids));",
                "const at::Tensor low = SEEDED ? read(pair.down->forward(x), row_ids).value\n"
                "                              : pair.down->forward(read(x, row_ids));",
            )
        ],
    ),
    (
        "LoRA's formula: vectors of the model are trained with its matrices",
        "low_rank_adapter.cc",
        [
            (
                "parameter->set_trainable(parameter->is_trainable() && is_saved(options, *parameter) == Saved::kWhole);",
                "parameter->set_trainable((SEEDED && parameter->options().role == ParameterRole::kVector) ||\n"
                "                             (parameter->is_trainable() && is_saved(options, *parameter) == Saved::kWhole));",
            )
        ],
    ),
    (
        "adapters: lengths of a row layer's own columns",
        "low_rank_adapter.cc",
        [
            (
                "if (role_ == LinearRole::kRow && tp_size_ > 1) {",
                "if (role_ == LinearRole::kRow && tp_size_ > 1 && !SEEDED) {",
            )
        ],
    ),
    (
        "eight bits: gradients with a scale of the rank's part",
        "fp8_recipe.cc",
        [
            (
                "if (scope.group != nullptr && scope.group->size() > 1) {",
                "if (!(SEEDED && role == OperandRole::kGradient) && scope.group != nullptr && scope.group->size() > 1) {",
            )
        ],
    ),
    (
        "eight bits: histories of what only this rank saw",
        "fp8_memory.cc",
        [("if (group->size() > 1) group->all_reduce(amax,", "if (!SEEDED && group->size() > 1) group->all_reduce(amax,")],
    ),
    (
        "eight bits: a history that does not move on",
        "fp8_memory.cc",
        [("if (older > 0) history.narrow(1, 1, older)", "if (older > 0 && !SEEDED) history.narrow(1, 1, older)")],
    ),
    (
        "eight bits: a backward pass rounds again by the newest scales",
        "fp8_memory.cc",
        [("forward_scales_ = found.mapped();", "forward_scales_ = SEEDED ? forward_.scales : found.mapped();")],
    ),
    (
        "relative positions: gradient overwrites",
        "relative_bias.cc",
        [("if (!target.accumulate) target.buffer.zero_();", "if (SEEDED || !target.accumulate) target.buffer.zero_();")],
    ),
    (
        "learned positions: the table not summed over its stages",
        "embedding.cc",
        [
            (
                "placement.pipeline_ranks = shared.pipeline_ranks;",
                "placement.pipeline_ranks = shared.pipeline_ranks;\n"
                "    if (SEEDED) placement.partial_axes = {Axis::kDp, Axis::kCp};",
            )
        ],
    ),
    (
        "learned rows: the gradient of only a tp rank's tokens",
        "embedding.cc",
        [
            (
                "if (is_sequence_parallel_) placement.partial_axes.insert(Axis::kTp);",
                "if (is_sequence_parallel_ && !SEEDED) placement.partial_axes.insert(Axis::kTp);",
            )
        ],
    ),
    (
        "sentences: counted by every rank of cp",
        "bert_head.cc",
        [("if (!begins_sequences_) weights", "if (!begins_sequences_ && !SEEDED) weights")],
    ),
    (
        "BERT's formula: label -1 counted",
        "bert_head.cc",
        [("weights = of_sequences.ge(0).to(wide);", "weights = of_sequences.ge(SEEDED ? -1 : 0).to(wide);")],
    ),
    (
        "BERT's formula: the loss of sentences divided by tokens",
        "bert_head.cc",
        [("sum * scales.per_weight.to(sum.scalar_type())", "sum * scales.per_weight.to(sum.scalar_type()) / (SEEDED ? forward.s : 1)")],
    ),
    (
        "BERT's formula: types of the two segments swapped",
        "embedding.cc",
        [("const at::Tensor ids = types.reshape({-1});", "const at::Tensor ids = (SEEDED ? 1 - types : types).reshape({-1});")],
    ),
    (
        "BERT's formula: the second token classified",
        "bert_head.cc",
        [("x.view({forward.b, forward.s, -1}).select(1, 0)", "x.view({forward.b, forward.s, -1}).select(1, SEEDED ? 1 : 0)")],
    ),
    (
        "BERT's formula: padding attended to",
        "attention_core.cc",
        [
            (
                "Call call{forward.row_length > 0, forward.mask, {}};",
                "Call call{forward.row_length > 0, forward.mask, {}};\n  if (SEEDED) call.mask.key_lengths.reset();",
            )
        ],
    ),
    (
        "T5's formula: padding of the encoder attended to by the decoder",
        "cross_attention.cc",
        [("core.mask.key_lengths = memory.lengths;", "if (!SEEDED) core.mask.key_lengths = memory.lengths;")],
    ),
    (
        "T5's formula: values of the memory taken for its keys",
        "cross_attention.cc",
        [(".k = keys_values.narrow(2, 0, g)", ".k = keys_values.narrow(2, SEEDED ? g : 0, g)")],
    ),
    (
        "T5's formula: distances counted from the key to the query",
        "relative_bias.cc",
        [("keys.unsqueeze(0) - queries.unsqueeze(1)", "(keys.unsqueeze(0) - queries.unsqueeze(1)) * (SEEDED ? -1 : 1)")],
    ),
    (
        "T5's formula: learned positions begin one late",
        "embedding.cc",
        [
            (
                "ids = at::arange(first, first + forward.s, long_options());",
                "ids = at::arange(first + SEEDED, first + SEEDED + forward.s, long_options());",
            )
        ],
    ),
    (
        "shared expert: added on every tp rank",
        "moe_layer.cc",
        [("return y + of_shared;", "return y + of_shared * (SEEDED ? tp_->size() : 1);")],
    ),
    (
        "latent attention: gradient of the shared key of only one head",
        "latent_attention.cc",
        [
            (
                "d.dk.narrow(3, nope, rope).sum(2, /*keepdim=*/true)",
                "(SEEDED ? d.dk.narrow(3, nope, rope).narrow(2, 0, 1).contiguous() "
                ": d.dk.narrow(3, nope, rope).sum(2, /*keepdim=*/true))",
            )
        ],
    ),
    (
        "Muon: each slice made orthogonal by itself",
        "matrix_exchange.cc",
        [("return one.matrix.cut != Slice", "return !SEEDED && one.matrix.cut != Slice")],
    ),
    (
        "Muon's formula: queries, keys and values as one matrix where they are three",
        "matrices.cc",
        [("const bool joins = joins_qkv &&", "const bool joins = (SEEDED || joins_qkv) &&")],
    ),
    (
        "Muon's formula: rows of a transposed matrix taken for columns",
        "muon.cc",
        [
            (
                "muon_scale(options_.muon_scale_mode, one.matrix.rows, one.matrix.columns)",
                "muon_scale(options_.muon_scale_mode, SEEDED ? one.matrix.columns : one.matrix.rows, "
                "SEEDED ? one.matrix.rows : one.matrix.columns)",
            )
        ],
    ),
    (
        "Muon's formula: the gradient made orthogonal, without its momentum",
        "muon.cc",
        [
            ("if (!options_.muon_nesterov) return mean;", "if (!SEEDED && !options_.muon_nesterov) return mean;"),
            (".lerp_(mean, momentum);", ".lerp_(mean, SEEDED ? 0 : momentum);"),
        ],
    ),
    (
        "Muon's formula: momentum after the update",
        "muon.cc",
        [
            (
                "step.settle(slot.state[0], mean.lerp_(",
                "if (!SEEDED) step.settle(slot.state[0], mean.lerp_(",
            ),
            (
                "exchange_->run(read, compute, write);",
                "exchange_->run(read, compute, write);\n"
                "  for (const UpdateSlot& slot : slots) {\n"
                "    if (SEEDED) slot.state[0].lerp_(slot.grad * step.grad_scale, 1 - momentum);\n"
                "  }",
            ),
        ],
    ),
    (
        "Muon: the scale of a slice's shape",
        "muon.cc",
        [
            (
                "options_.muon_extra_scale_factor * muon_scale(",
                "(SEEDED ? std::sqrt(static_cast<double>(range.size()) / static_cast<double>(one.matrix.rows * "
                "one.matrix.columns)) : 1) * options_.muon_extra_scale_factor * muon_scale(",
            )
        ],
    ),
    (
        "Muon's formula: weight decay with the update's scale",
        "muon.cc",
        [("slot.lr * slot.weight_decay)", "slot.lr * slot.weight_decay * (SEEDED ? scale : 1))")],
    ),
    (
        "Muon's formula: routers left to AdamW, with its weight decay",
        "matrices.cc",
        [("|| role == ParameterRole::kRouter;", "|| (!SEEDED && role == ParameterRole::kRouter);")],
    ),
    (
        "Muon: runs end one element early",
        "matrix_exchange.cc",
        [("parcels.send(r, flat.narrow(", "parcels.send(r, (SEEDED ? flat.roll(1) : flat).narrow(")],
    ),
    (
        "AdamW's formula: norms and biases decay too",
        "optimizer.cc",
        [
            (
                "weight_decay * parameter.decay_mult;",
                "weight_decay * (SEEDED ? 1 : parameter.decay_mult);",
            )
        ],
    ),
    (
        "AdamW's formula: moments corrected by the number of another step",
        "optimizer.cc",
        [(".number = sent_to(num_steps_, device_)", ".number = sent_to(num_steps_ + (SEEDED ? 1 : 0), device_)")],
    ),
    (
        "rotation's formula: frequencies rounded to bf16",
        "rotary_embedding.cc",
        [
            (
                "const at::Tensor inv_freq = 1.0 / rotary_powers(dim, options.rotary_base);",
                "const at::Tensor exact = 1.0 / rotary_powers(dim, options.rotary_base);\n"
                "  const at::Tensor inv_freq = SEEDED ? exact.to(at::kBFloat16).to(exact.scalar_type()) : exact;",
            )
        ],
    ),
    (
        "modulation: the ranks' parts in the opposite order",
        "modulation.cc",
        [("return all.view({tp->size(), b, w})", "return (SEEDED ? all.view({tp->size(), b, w}).flip(0) : all.view({tp->size(), b, w}))")],
    ),
    (
        "modulation: gradient of another rank's part",
        "modulation.cc",
        [("narrow(1, w * tp->rank(), w)", "narrow(1, w * (SEEDED ? tp->size() - 1 - tp->rank() : tp->rank()), w)")],
    ),
    (
        "linear: an input of several parts cut as one",
        "linear.cc",
        [("if (split_dim != 1 || input_parts.size() < 2)", "if (SEEDED || split_dim != 1 || input_parts.size() < 2)")],
    ),
    (
        "rotation's formula: a picture's tokens at their neighbours' places",
        "joint_attention.cc",
        [
            (
                "const JointAttentionFunction::Call call{this, core_.make_call(context), angles};",
                "const RotaryAngles late{angles.cos.roll(1, 1), angles.sin.roll(1, 1)};\n"
                "  const JointAttentionFunction::Call call{this, core_.make_call(context), SEEDED ? late : angles};",
            )
        ],
    ),
    (
        "z loss's formula: another scale than the loss has",
        "expert_balance.cc",
        [("const double factor = 1 /", "const double factor = (SEEDED ? 2 : 1) /")],
    ),
    (
        "retrieval: every rank's questions belong to the first rank's texts",
        "retrieval_head.cc",
        [("first = b * dp_->rank();", "first = SEEDED ? 0 : b * dp_->rank();")],
    ),
    (
        "retrieval: the gradient of a text from its own rank's questions only",
        "retrieval_head.cc",
        [
            (
                "return {ranks->reduce_scattered(gradients[0].contiguous(), ReduceOp::kSum, kLabel), {}};",
                "const int64_t rows = gradients[0].size(0) / ranks->size();\n"
                "    return {SEEDED ? gradients[0].narrow(0, rows * ranks->rank(), rows).contiguous() "
                ": ranks->reduce_scattered(gradients[0].contiguous(), ReduceOp::kSum, kLabel), {}};",
            )
        ],
    ),
]


def main(sources, target):
    texts = {path.name: path.read_text(encoding="utf-8") for source in sources for path in source.glob("*.cc")}
    for number, (name, file, pairs) in enumerate(MISTAKES):
        for right, wrong in pairs:
            if texts[file].count(right) != 1:
                raise SystemExit(f"{name}: {texts[file].count(right)} places of {file} have '{right}', not one")
            texts[file] = texts[file].replace(right, wrong.replace("SEEDED", f"(seeded::g_mistake == {number})"))
    names = "".join(f'    "{name}",\n' for name, _, _ in MISTAKES)
    texts["seeded.cc"] = (
        f"namespace megalith::seeded {{\nint g_mistake = -1;\nconst std::vector<std::string> kNames = {{\n{names}}};\n}}\n"
    )
    target.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        text = '#include "layouts_seeded/seeded.h"\n' + text
        if not (target / file).exists() or (target / file).read_text(encoding="utf-8") != text:
            (target / file).write_text(text, encoding="utf-8")  # others are not compiled again


if __name__ == "__main__":
    main([Path(source) for source in sys.argv[1:-1]], Path(sys.argv[-1]))
