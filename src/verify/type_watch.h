// Follows the types of tensors (verify/distribution.h) through one rank's passes on the meta device: operators by
// rules, collectives of its groups by what they do, gradients by the type of the tensor that they belong to.
//
// Layers say only what cannot be seen (comm/distribution.h). The rest is read: a weight's type is its Placement; a
// product over a dim that both operands have cut is a partial sum.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/distribution.h"
#include "comm/groups.h"
#include "nn/parameter.h"
#include "verify/distribution.h"

namespace megalith {

// A composition that does not fit, between two places of the program.
struct TypeFinding {
  std::string axis, problem, from, at;

  std::string text() const;  // several lines
  bool operator==(const TypeFinding&) const = default;
};

struct TypeCounts {
  int64_t operators = 0, collectives = 0, gradients = 0, parameters = 0;
};

class TypeWatch : public DistributionWatch {
 public:
  // While it lives, this thread's operators on meta tensors and its groups' collectives are followed.
  explicit TypeWatch(const TypeAxes& axes);
  ~TypeWatch() override;
  TypeWatch(const TypeWatch&) = delete;
  TypeWatch& operator=(const TypeWatch&) = delete;

  // Groups of several ranks move nothing and are checked. The watch need not live yet; axes outlive them.
  static GroupFactory group_factory(const TypeAxes& axes, int rank);

  // Places from now on are in "model.layers.0", "backward of model.layers.0".
  void enter(std::string where);
  void set(const at::Tensor& tensor, const Distribution& type) { store_.set(tensor, type); }
  Distribution of(const at::Tensor& tensor) const { return store_.of(tensor); }
  // The parameter's value has its type, and its gradient's contributions are counted in.
  void add_parameter(const Parameter& parameter, const Distribution& type);
  const Distribution& type_of(const Parameter& parameter) const { return parameters_.at(&parameter); }
  // Element by element; dtypes may differ.
  void copy_runs(const at::Tensor& to, const at::Tensor& from);
  void set_axis(const at::Tensor& tensor, int axis, Spread spread, const std::string& what);
  // Checks this tensor's gradient when it comes.
  void expect_gradient(const at::Tensor& tensor);

  int make_place(const std::string& what);
  void tell(int axis, std::string_view problem, int from, int at);
  const std::vector<TypeFinding>& findings() const { return findings_; }
  const TypeCounts& counts() const { return counts_; }
  void count_parameter() { ++counts_.parameters; }

  at::Tensor cut(const at::Tensor& part, const std::vector<int>& ranks) override;
  void share(const at::Tensor& tensor, const std::vector<int>& ranks, bool is_sent) override;
  void sum(const at::Tensor& tensor, const std::vector<int>& ranks) override;
  void take_from(const at::Tensor& tensor, const at::Tensor& other) override;

  struct Observer;

 private:
  friend struct Observer;
  friend class TypedGroup;
  void check_gradient(const Distribution& tensor, const at::Tensor& gradient);
  const Parameter* parameter_of_gradient(const at::Tensor& gradient) const;
  const Parameter* parameter_of_value(const at::Tensor& tensor) const;

  const TypeAxes& axes_;
  TypeStore store_;
  std::unordered_map<const Parameter*, Distribution> parameters_;
  std::unordered_map<const c10::StorageImpl*, std::vector<const Parameter*>> weights_;  // of their values
  std::set<const Parameter*> has_gradient_;
  std::unordered_map<const c10::TensorImpl*, c10::weak_intrusive_ptr<c10::TensorImpl>> expected_;
  std::vector<std::string> places_ = {"the input"};
  std::string where_;
  std::vector<TypeFinding> findings_;
  TypeCounts counts_;
  std::unique_ptr<Observer> observer_;
  DistributionWatch* outer_;
};

}  // namespace megalith
