// BERT's transform before the vocabulary product, and its sentence-pair classifier.
//
//   transform  norm( gelu( dense(x) ) )                     every token, for the masked-language-model head
//   sentence   classifier( tanh( dense(first token) ) )     two logits per sequence, optional
//
// Weights are whole. Every cp rank computes with its own first token, to issue the same collectives; only the one that
// begins the sequence counts. Sources: arXiv:1810.04805; sentence order: arXiv:1909.11942, in the form of
// arXiv:1909.08053.
#pragma once

#include <memory>
#include <string>

#include "nn/forward.h"
#include "nn/layer_options.h"
#include "nn/linear.h"
#include "nn/norm.h"

namespace megalith {

// Without `.weight` and `.bias`.
struct BertHeadNames {
  std::string transform = "cls.predictions.transform.dense", transform_norm = "cls.predictions.transform.LayerNorm";
  std::string pooler = "bert.pooler.dense", sentence = "cls.seq_relationship";
};

class BertPooler : public Module {
 public:
  BertPooler(const LayerContext& context, const LayerOptions& options, const std::string& name);

  // First tokens (b, h), the same on all tp ranks -> (b, h).
  at::Tensor forward(const at::Tensor& first) { return dense_.forward(first).tanh(); }

 private:
  Linear dense_;
};

class BertHead : public Module {
 public:
  BertHead(const LayerContext& context, const LayerOptions& options, const BertHeadNames& names,
           bool has_sentence_head);

  bool has_sentence_head() const { return sentence_ != nullptr; }

  // x (t', h) -> the same.
  at::Tensor transformed(const at::Tensor& x);

  // x (t', h) -> (b, 2). Valid on ranks that begin sequences.
  at::Tensor sentence_logits(const at::Tensor& x, const ForwardContext& forward);
  struct SentenceLoss {
    LossTerm term;
    at::Tensor num_right;  // 0-d wide, detached
  };
  // labels (b) int64: 0, 1, or negative to ignore. Objective: sum of losses times scales.per_weight.
  SentenceLoss sentence_loss(const at::Tensor& x, const at::Tensor& labels, const ObjectiveScales& scales,
                         const ForwardContext& forward);

 protected:
  double own_forward_flops(const CostShape& shape) const override;

 private:
  at::Tensor first_tokens(const at::Tensor& x, const ForwardContext& forward) const;

  Group* tp_;
  bool is_sequence_parallel_;
  bool begins_sequences_;
  Kernels kernels_;
  ops::ExpertActivation activation_;
  Linear transform_;
  Norm transform_norm_;
  std::unique_ptr<BertPooler> pooler_;
  std::unique_ptr<Linear> sentence_;
};

}  // namespace megalith
