// Contrastive loss of questions and their texts.
//
//   scores  q_i · c_j                 of this rank's b questions and all dp ranks' texts, wide, perhaps divided by a
//           number
//   loss    -log softmax_j(scores)    at j = i: the sum over this rank's rows
//
// It covers one microbatch of all dp ranks, with equally many rows. Sources: arXiv:1906.00300, §4; sets over ranks:
// Megatron-LM's pretrain_ict.py, where every rank scores all questions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/forward.h"
#include "nn/module.h"

namespace megalith {

class Group;

// "top5_acc": share of rows whose text is among the k best.
std::string top_k_name(int64_t k);

class RetrievalHead : public Module {
 public:
  struct Options {
    int64_t vector_size = 0;
    double score_divisor = 1;
    std::vector<int64_t> top_ks = {};  // accuracies to report
  };
  struct Loss {
    LossTerm term;                  // nameless; weight: rows
    at::Tensor row_losses;          // (b) wide, detached
    std::vector<LossTerm> correct;  // per top_ks: 100 for each such row; no objective
  };

  RetrievalHead(const LayerContext& context, Options options);

  // (b, vector_size), paired by row. Objective: sum of losses times scales.per_weight.
  Loss loss(const at::Tensor& queries, const at::Tensor& contexts, const ObjectiveScales& scales) const;

 protected:
  double own_forward_flops(const CostShape& shape) const override;

 private:
  Group* dp_;
  Options options_;
};

}  // namespace megalith
