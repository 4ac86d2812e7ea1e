// BERT's head beside nn/lm_head.h: the transform before the vocabulary's product and the sentence-pair classifier.
//
//   transform  norm( gelu( dense(x) ) )                     every token, for the masked-language-model head
//   sentence   classifier( tanh( dense(first token) ) )     two logits per sequence, if the model has this part
//
// All weights are whole. Under context parallelism every rank computes with its own first token, to issue the same
// collectives; only the rank that begins the sequence counts.
// Source: Devlin et al. 2019, arXiv:1810.04805; sentence order: Lan et al. 2020, arXiv:1909.11942, in the form of
// Shoeybi et al. 2019, arXiv:1909.08053.
#pragma once

#include <memory>
#include <string>

#include "nn/forward.h"
#include "nn/layer_options.h"
#include "nn/linear.h"
#include "nn/norm.h"

namespace megalith {

// Canonical, without `.weight` and `.bias`.
struct BertHeadNames {
  std::string transform = "cls.predictions.transform.dense", transform_norm = "cls.predictions.transform.LayerNorm";
  std::string pooler = "bert.pooler.dense", sentence = "cls.seq_relationship";
};

// tanh(dense(first token)): BERT's vector for a whole sequence.
class BertPooler : public Module {
 public:
  BertPooler(const LayerContext& context, const LayerOptions& options, const std::string& name);

  // First tokens (b, h), the same on all tp ranks -> (b, h), differentiable.
  at::Tensor forward(const at::Tensor& first) { return dense_.forward(first).tanh(); }

 private:
  Linear dense_;
};

class BertHead : public Module {
 public:
  BertHead(const LayerContext& context, const LayerOptions& options, const BertHeadNames& names,
           bool has_sentence_head);

  bool has_sentence_head() const { return sentence_ != nullptr; }

  // x (t', h) -> the same (t' as in nn/forward.h); differentiable.
  at::Tensor transformed(const at::Tensor& x);

  // x as above -> (b, 2); differentiable. Valid on ranks that hold the beginnings of sequences.
  at::Tensor sentence_logits(const at::Tensor& x, const ForwardContext& forward);
  struct SentenceLoss {
    LossTerm term;
    at::Tensor num_right;  // 0-d wide, detached: correct predictions among sequences that count
  };
  // labels (b) int64: 0 or 1, negative to ignore. The objective is the sum of losses times scales.per_weight.
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
