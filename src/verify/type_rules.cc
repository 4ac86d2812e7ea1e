#include "verify/type_rules.h"

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

namespace megalith {
namespace {

using Operands = std::vector<OperandType>;

constexpr std::string_view kOwn = "megalith::", kAten = "aten::";

constexpr std::string_view kNonlinear = "a partial sum goes through an operator that is not linear: its sum over the "
                                        "ranks is missing before";
constexpr std::string_view kDoubled = "a sum's summand is added to what every rank has whole, which then counts once "
                                      "for each rank";
constexpr std::string_view kUngathered = "each rank multiplies its own rows by its own part of the weight: a gathering "
                                         "is missing before";
constexpr std::string_view kReduced = "a summand is added to a sum that is complete";

// One axis of one operator.
class AxisRule {
 public:
  AxisRule(const Operands& in, size_t axis, int place, const TellMisfit& tell)
      : in_(in), axis_(axis), place_(place), tell_(tell) {}

  Spread of(size_t i) const { return i < in_.size() ? in_[i].type.spread[axis_] : Spread::kAny; }
  WeightCut cut(size_t i) const { return i < in_.size() ? in_[i].type.cut[axis_] : WeightCut::kNone; }
  bool varies(size_t i) const { return differs(of(i)); }
  void tell(std::string_view why, size_t first, size_t second) const {
    tell_(static_cast<int>(axis_), why, first, second);
  }

  // The strongest of these; the first that has it says where it came from.
  size_t strongest(std::initializer_list<size_t> inputs) const {
    return *std::max_element(inputs.begin(), inputs.end(), [&](size_t a, size_t b) { return of(a) < of(b); });
  }
  size_t strongest() const {
    size_t found = 0;
    for (size_t i = 1; i < in_.size(); ++i) {
      if (of(i) > of(found)) found = i;
    }
    return found;
  }
  void take(Distribution& into, size_t input) const {
    if (input >= in_.size()) return;
    into.spread[axis_] = of(input);
    into.cut[axis_] = cut(input);
    into.place[axis_] = in_[input].type.place[axis_];
  }
  void make(Distribution& into, Spread spread) const {
    into.spread[axis_] = spread;
    into.cut[axis_] = WeightCut::kNone;
    into.place[axis_] = place_;
  }

  // y = x w^T with `kept` the weight's dim that y has, `summed` the one that is summed over: rows and columns in
  // forward, columns and rows for dx.
  void multiply(Distribution& y, size_t x, size_t w, WeightCut kept, WeightCut summed) const {
    if (of(w) != Spread::kVarying) return take(y, x);
    if (cut(w) == kept) {
      if (varies(x)) tell(kUngathered, x, w);
      return make(y, Spread::kVarying);
    }
    if (cut(w) != summed) return make(y, Spread::kVarying);
    if (is_equal(of(x))) tell("the whole of a tensor meets a part of the weight", x, w);
    make(y, Spread::kPartial);
  }

  // A contribution to a parameter's gradient: sums over the tokens of the products of these inputs.
  //   in_the_buffer  the input that has the earlier ones
  void contribute(Distribution& gradient, const Distribution* parameter, std::initializer_list<size_t> factors,
                  size_t in_the_buffer) const {
    const size_t from = strongest(factors);
    const auto num_varying = std::count_if(factors.begin(), factors.end(), [&](size_t i) { return varies(i); });
    const bool is_cut = parameter != nullptr && parameter->spread[axis_] == Spread::kVarying;
    const WeightCut how = is_cut ? parameter->cut[axis_] : WeightCut::kNone;
    if (is_cut) {
      const bool sums_over_both = num_varying > 1 && (how == WeightCut::kRows || how == WeightCut::kColumns);
      if (of(from) == Spread::kAny)
        take(gradient, from);
      else
        make(gradient, sums_over_both ? Spread::kPartial : Spread::kVarying);
    } else if (of(from) == Spread::kAny) {
      take(gradient, from);
    } else {
      make(gradient, num_varying > 0 ? Spread::kPartial : Spread::kSame);
    }
    accumulate(gradient, in_the_buffer);
  }

  void accumulate(Distribution& gradient, size_t in_the_buffer) const {
    const Spread earlier = of(in_the_buffer), now = gradient.spread[axis_];
    if (earlier == Spread::kAny || earlier == now) return;
    const size_t other = in_the_buffer + 1;
    if (is_equal(earlier) && differs(now)) tell(kReduced, in_the_buffer, other);
    if (earlier == Spread::kPartial && is_equal(now)) tell(kDoubled, in_the_buffer, other);
    if (earlier > now) take(gradient, in_the_buffer);
  }

  // Sums of several tensors, or products with what is the same on all ranks, keep a partial sum partial.
  void combine(Distribution& result, bool is_linear, std::string_view op, size_t num_linear) const {
    const size_t from = strongest();
    take(result, from);
    if (of(from) != Spread::kPartial) return;
    if (!is_linear && from >= num_linear) tell(kNonlinear, from, from);
    for (size_t i = 0; i < in_.size(); ++i) {
      if ((op == "add" || op == "sub") && is_equal(of(i))) tell(kDoubled, from, i);
      if (op == "mul" && i != from && of(i) == Spread::kPartial) tell(kNonlinear, from, i);
    }
  }

 private:
  const Operands& in_;
  size_t axis_;
  int place_;
  const TellMisfit& tell_;
};

// Results are constants, or uninitialised.
bool makes_constants(std::string_view op) {
  static const std::unordered_set<std::string_view> kFactories = {"arange", "eye", "scalar_tensor", "randn", "rand"};
  return op.starts_with("zeros") || op.starts_with("ones") || op.starts_with("full") || op.starts_with("empty") ||
         op.starts_with("new_") || op.ends_with("_like") || kFactories.contains(op);
}

bool is_linear_in_all(std::string_view op) {
  static const std::unordered_set<std::string_view> kLinear = {
      "add",       "sub",      "neg",         "clone",       "contiguous", "to",        "_to_copy", "sum",
      "mean",      "cat",      "stack",       "concat",      "reshape",    "flatten",   "gather",   "scatter_add",
      "index_add", "index_copy", "index_select", "masked_fill", "where",   "constant_pad_nd", "roll", "mul",
      "div",       "addcmul",  "detach",      "copy",        "expand",     "unflatten", "narrow",   "select",
      "slice",     "split",    "view",        "transpose",   "permute",    "t",         "mm",       "matmul",
      "bmm",       "squeeze",  "unsqueeze",   "chunk",       "pad",        "alias",     "scatter",  "addmm"};
  return kLinear.contains(op);
}

OperatorTypes of_aten(std::string_view op, const Operands& in, const Distribution* parameter, int num_axes, int place,
                      const TellMisfit& tell) {
  OperatorTypes types;
  const bool is_in_place = op.ends_with('_') && !op.ends_with("__");
  if (is_in_place) op.remove_suffix(1);
  if (is_in_place) types.written = {0};
  if (makes_constants(op) || op == "zero" || op == "fill") return types;
  const bool is_linear = is_linear_in_all(op);
  const bool is_gradient = op.ends_with("_backward");
  for (size_t axis = 0; axis < static_cast<size_t>(num_axes); ++axis) {
    const AxisRule rule(in, axis, place, tell);
    if (op == "copy") {
      rule.take(types.result, 1);
    } else if (is_in_place && op == "add" && parameter != nullptr) {
      rule.take(types.result, 1);
      rule.accumulate(types.result, 0);
    } else {
      rule.combine(types.result, is_linear, op, is_gradient ? 1 : 0);
    }
  }
  return types;
}

OperatorTypes of_own(std::string_view op, const Operands& in, const Distribution* parameter, int num_axes, int place,
                     const TellMisfit& tell) {
  static const std::unordered_set<std::string_view> kLinear = {"rotary", "permute_tokens", "combine_tokens", "dropout"};
  if (op.starts_with("grouped_")) op.remove_prefix(std::string_view("grouped_").size());
  const bool is_gradient = op.ends_with("_backward");
  const bool is_norm_gradient = is_gradient && op.find("_norm_") != std::string_view::npos;
  OperatorTypes types;
  if (op == "linear_wgrad_" || op == "bias_grad_" || op == "embedding_wgrad_") {
    types.written = {0};
    types.gradient.emplace();
  }
  if (op == "linear_cross_entropy") {
    types.written = {4};
    types.gradient.emplace();
  }
  if (op == "cross_entropy_gradient_") types.written = {0};
  if (op == "merge_attention_") types.written = {0, 1};
  if (op == "rotary_backward") types.written = {3};
  if (op == "attention_backward") types.of_keys.emplace();
  for (size_t axis = 0; axis < static_cast<size_t>(num_axes); ++axis) {
    const AxisRule rule(in, axis, place, tell);
    if (op == "linear_forward") {
      rule.multiply(types.result, 0, 1, WeightCut::kRows, WeightCut::kColumns);
      if (types.result.spread[axis] == Spread::kPartial && is_equal(rule.of(2))) rule.tell(kDoubled, 0, 2);
    } else if (op == "linear_dgrad") {
      rule.multiply(types.result, 0, 1, WeightCut::kColumns, WeightCut::kRows);
    } else if (op == "linear_wgrad_") {
      rule.contribute(*types.gradient, parameter, {1, 2}, 0);
    } else if (op == "bias_grad_") {
      rule.contribute(*types.gradient, parameter, {1}, 0);
    } else if (op == "embedding_forward") {
      if (rule.of(1) != Spread::kVarying)
        rule.take(types.result, 0);
      else
        rule.make(types.result, rule.cut(1) == WeightCut::kRows ? Spread::kPartial : Spread::kVarying);
    } else if (op == "embedding_wgrad_") {
      const bool is_cut = parameter != nullptr && parameter->spread[axis] == Spread::kVarying;
      const bool is_partial = is_cut && parameter->cut[axis] == WeightCut::kRows && rule.varies(2);
      if (is_partial) {  // a gathering of the gradient is missing
        rule.make(*types.gradient, Spread::kPartial);
        rule.accumulate(*types.gradient, 0);
      } else {
        rule.contribute(*types.gradient, parameter, {1, 2}, 0);
      }
    } else if (op == "linear_cross_entropy") {
      rule.take(types.result, rule.strongest({0, 1, 2, 3}));
      rule.contribute(*types.gradient, parameter, {0, 2, 3}, 4);
    } else {
      const bool is_linear = kLinear.contains(op);
      rule.combine(types.result, is_linear, op, is_norm_gradient ? 2 : is_gradient ? 1 : 0);
      if (types.of_keys) {  // dk: a sum over the queries, which are in[1]
        if (rule.varies(1) && !rule.varies(2))
          rule.make(*types.of_keys, Spread::kPartial);
        else
          types.of_keys->set(AxisBits{1} << axis, types.result.spread[axis], types.result.place[axis]);
      }
      if (!is_norm_gradient) continue;
      // A norm's weight: of samples, where it varies.
      const bool is_own = rule.of(3) == Spread::kVarying;
      const size_t from = rule.strongest({0, 2});
      if (rule.varies(from) && !is_own)
        rule.make(types.of_sums, Spread::kPartial);
      else
        rule.take(types.of_sums, from);
    }
  }
  if (!is_norm_gradient) types.of_sums = types.result;
  return types;
}

}  // namespace

OperatorTypes types_of_operator(std::string_view name, const std::vector<OperandType>& in,
                                const Distribution* parameter, int num_axes, int place, const TellMisfit& tell) {
  if (name.starts_with(kOwn)) {
    return of_own(name.substr(kOwn.size()), in, parameter, num_axes, place, tell);
  }
  if (name.starts_with(kAten)) name.remove_prefix(kAten.size());
  return of_aten(name, in, parameter, num_axes, place, tell);
}

}  // namespace megalith
