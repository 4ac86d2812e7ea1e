// The loss that makes the vector of a question resemble that of its text more than those of other texts.
//
//   scores  q_i · c_j                 of the b questions of this rank and the B = b · dp texts of all of them,
//                                     in fp32 (fp64 for a model in fp64); divided by a number where one is given
//   loss    -log softmax_j(scores)    at j = i: the sum over this rank's rows
//
// The loss is of a set of samples: one microbatch of all data-parallel ranks. Accumulation does not enlarge it. Equal
// sets, in one order, give the same loss and gradients on any number of ranks. Every rank must have as many rows.
// Source: Lee et al. 2019, arXiv:1906.00300, §4; the set over ranks is Megatron-LM's (pretrain_ict.py), where every
// rank computes the scores of all questions. Here each has those of its own, and the gradients of a text are summed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/forward.h"
#include "nn/module.h"

namespace megalith {

class Group;

// How the share of rows is logged whose text is among the k best: "top5_acc".
std::string top_k_name(int64_t k);

class RetrievalHead : public Module {
 public:
  struct Options {
    int64_t vector_size = 0;
    double score_divisor = 1;
    std::vector<int64_t> top_ks = {};  // accuracies that are told
  };
  struct Loss {
    LossTerm term;                  // without a name; its weight counts rows
    at::Tensor row_losses;          // (b) wide, detached
    std::vector<LossTerm> correct;  // of each of top_ks: 100 for a row whose text is among the k best; no objective
  };

  RetrievalHead(const LayerContext& context, Options options);

  // queries, contexts (b, vector_size); row i of the one belongs to row i of the other. Differentiable. The objective
  // is the sum of the rows' losses times scales.per_weight.
  Loss loss(const at::Tensor& queries, const at::Tensor& contexts, const ObjectiveScales& scales) const;

 protected:
  double own_forward_flops(const CostShape& shape) const override;

 private:
  Group* dp_;
  Options options_;
};

}  // namespace megalith
