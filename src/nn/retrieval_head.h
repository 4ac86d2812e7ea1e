// The contrastive loss of questions and their texts.
//
//   scores  q_i · c_j                 of this rank's b questions and all ranks' B = b · dp texts, in fp32 (fp64 for a
//                                     model in fp64), optionally divided by a number
//   loss    -log softmax_j(scores)    at j = i: the sum over this rank's rows
//
// The loss covers one microbatch of all data-parallel ranks (equally many rows each); accumulation does not enlarge it.
// The same set in the same order gives the same loss and gradients on any number of ranks.
// Source: Lee et al. 2019, arXiv:1906.00300, §4; sets over ranks are Megatron-LM's (pretrain_ict.py), where every rank
// scores all questions. Here each scores its own, and the gradients of texts are summed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/forward.h"
#include "nn/module.h"

namespace megalith {

class Group;

// "top5_acc": the logged share of rows whose text is among the k best.
std::string top_k_name(int64_t k);

class RetrievalHead : public Module {
 public:
  struct Options {
    int64_t vector_size = 0;
    double score_divisor = 1;
    std::vector<int64_t> top_ks = {};  // accuracies to report
  };
  struct Loss {
    LossTerm term;                  // without a name; its weight counts rows
    at::Tensor row_losses;          // (b) wide, detached
    std::vector<LossTerm> correct;  // for each of top_ks: 100 for a row whose text is among the k best; no objective
  };

  RetrievalHead(const LayerContext& context, Options options);

  // queries, contexts (b, vector_size), paired by row. Differentiable. The objective is the sum of the rows' losses
  // times scales.per_weight.
  Loss loss(const at::Tensor& queries, const at::Tensor& contexts, const ObjectiveScales& scales) const;

 protected:
  double own_forward_flops(const CostShape& shape) const override;

 private:
  Group* dp_;
  Options options_;
};

}  // namespace megalith
