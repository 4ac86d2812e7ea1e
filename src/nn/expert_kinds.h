// The choices that a layer with experts is built from, without torch's headers: options name them.
#pragma once

namespace megalith {

enum class RouterScore { kSoftmax, kSigmoid };
enum class RouterBalancing { kNone, kAuxLoss, kSeqAuxLoss, kSinkhorn };
enum class GroupScore { kTopSum, kMax };  // of a group's scores: the sum of the k / topk_groups largest; the largest
enum class DropPolicy { kProbability, kPosition };
enum class DispatcherKind { kAllGather, kAllToAll };

}  // namespace megalith
