// BERT's head beside the language-model head (nn/lm_head.h): what changes the hidden states before the vocabulary's
// product, and the classifier of pairs of sentences.
//
//   transform  norm( gelu( dense(x) ) )                     of every token, for the masked-language-model head
//   sentence   classifier( tanh( dense(first token) ) )     two logits a sequence; where the model has this part
//
// Each rank has all weights. Under context parallelism every rank computes with its own first token, and only the one
// whose part begins the sequence counts, so that all issue the same collectives.
// Source: Devlin et al. 2019, arXiv:1810.04805; the classifier of swapped sentences is Lan et al. 2020,
// arXiv:1909.11942, in the form of Shoeybi et al. 2019, arXiv:1909.08053.
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

// tanh(dense(first token)): what a BERT says of a whole sequence.
class BertPooler : public Module {
 public:
  // name  canonical, without `.weight` and `.bias`
  BertPooler(const LayerContext& context, const LayerOptions& options, const std::string& name);

  // The first tokens (b, h), on all tp ranks the same -> (b, h), differentiable.
  at::Tensor forward(const at::Tensor& first) { return dense_.forward(first).tanh(); }

 private:
  Linear dense_;
};

class BertHead : public Module {
 public:
  BertHead(const LayerContext& context, const LayerOptions& options, const BertHeadNames& names,
           bool has_sentence_head);

  bool has_sentence_head() const { return sentence_ != nullptr; }

  // x (t, h), or this rank's (t / tp, h) under sequence parallelism -> the same; differentiable.
  at::Tensor transformed(const at::Tensor& x);

  // x as above -> (b, 2); differentiable. Right on the ranks that hold the beginnings of the sequences.
  at::Tensor sentence_logits(const at::Tensor& x, const ForwardContext& forward);
  struct SentenceLoss {
    LossTerm term;
    at::Tensor num_right;  // 0-d wide, detached: sequences that count and are told right
  };
  // labels (b) int64: 0 or 1; below 0: the sequence does not count. The objective is the sum of the sequences' losses
  // times scales.per_weight.
  SentenceLoss sentence_loss(const at::Tensor& x, const at::Tensor& labels, const ObjectiveScales& scales,
                         const ForwardContext& forward);

 protected:
  double own_forward_flops(const CostShape& shape) const override;

 private:
  at::Tensor first_tokens(const at::Tensor& x, const ForwardContext& forward) const;

  Group* tp_;
  bool is_sequence_parallel_;
  bool begins_sequences_;  // this rank's part does
  Kernels kernels_;
  ops::ExpertActivation activation_;
  Linear transform_;
  Norm transform_norm_;
  std::unique_ptr<BertPooler> pooler_;  // null without the classifier
  std::unique_ptr<Linear> sentence_;    // as well
};

}  // namespace megalith
