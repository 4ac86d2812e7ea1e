#include "verify/type_watch.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "verify/type_rules.h"

namespace megalith {

std::string TypeFinding::text() const {
  return fmt::format("{}: {}\n  made by  {}\n  met by   {}", axis, problem, from, at);
}

// One thread's observers of operators, which are plain functions.
struct TypeWatch::Observer {
  // An operator under way.
  struct Call : at::ObserverContext {
    bool is_node = false, is_outermost = false;
    std::string name;
    std::vector<OperandType> in;
    OperatorTypes types;
    std::vector<const c10::StorageImpl*> storages;
  };

  TypeWatch& watch;
  at::CallbackHandle callback{};
  int depth = 0;
  Call* own = nullptr;  // the operator of ops/ in which operators run

  explicit Observer(TypeWatch& of) : watch(of) {}

  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function);
  static void on_end(const at::RecordFunction& function, at::ObserverContext* context);
  void start(Call& call);
  void give(const at::Tensor& result, const Call& call);
};

namespace {

thread_local TypeWatch::Observer* newest_type_observer = nullptr;

template <typename Visit>
void for_each_typed(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_typed(element, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) for_each_typed(element, visit);
  }
}

const c10::StorageImpl* storage_or_null(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace

std::unique_ptr<at::ObserverContext> TypeWatch::Observer::on_start(const at::RecordFunction& function) {
  auto call = std::make_unique<Call>();
  const std::string_view name = function.name();
  call->is_node = name.starts_with("autograd::engine::");
  if (call->is_node) return call;
  call->is_outermost = newest_type_observer->depth++ == 0;
  if (!call->is_outermost) return call;
  call->name = name;
  for (const c10::IValue& value : function.inputs()) {
    for_each_typed(value, [&](const at::Tensor& tensor) { call->in.push_back({tensor, {}}); });
  }
  newest_type_observer->start(*call);
  return call;
}

void TypeWatch::Observer::start(Call& call) {
  bool is_typed = false;
  for (OperandType& operand : call.in) {
    call.storages.push_back(storage_or_null(operand.tensor));
    if (!operand.tensor.defined()) continue;
    if (operand.tensor.requires_grad()) watch.expect_gradient(operand.tensor);
    operand.type = watch.of(operand.tensor);
    is_typed = is_typed || operand.type.is_known();
  }
  const bool is_own = call.name.starts_with("megalith::");
  if (is_own) own = &call;
  if (!is_typed) return;
  ++watch.counts_.operators;
  const bool may_write_gradient = call.name.ends_with('_') || call.name == "megalith::linear_cross_entropy";
  const Parameter *gradient_of = nullptr, *weight = nullptr;
  for (OperandType& operand : call.in) {
    if (!operand.tensor.defined()) continue;
    if (weight == nullptr) weight = watch.parameter_of_value(operand.tensor);
    if (!may_write_gradient || gradient_of != nullptr) continue;
    gradient_of = watch.parameter_of_gradient(operand.tensor);
    // An earlier step's rest is overwritten.
    if (gradient_of != nullptr && watch.has_gradient_.insert(gradient_of).second) operand.type = {};
  }
  if (weight == nullptr) weight = gradient_of;
  const Distribution* parameter = gradient_of == nullptr ? nullptr : &watch.type_of(*gradient_of);
  const std::string_view bare = std::string_view(call.name).substr(call.name.find("::") + 2);
  const int place =
      watch.make_place(weight == nullptr ? std::string(bare) : fmt::format("{} of {}", bare, weight->name()));
  call.types = types_of_operator(call.name, call.in, parameter, watch.axes_.count(), place,
                                 [&](int axis, std::string_view why, size_t first, size_t second) {
                                   const auto place_of = [&](size_t i) {
                                     return i < call.in.size() ? call.in[i].type.place[static_cast<size_t>(axis)] : 0;
                                   };
                                   const int other = first == second ? 0 : place_of(second);
                                   watch.tell(axis, why, place_of(first), other == 0 ? place : other);
                                 });
  if (call.name == "aten::copy_" && call.in[0].tensor.numel() == call.in[1].tensor.numel()) {
    return watch.copy_runs(call.in[0].tensor, call.in[1].tensor);
  }
  for (const size_t i : call.types.written) {
    if (i >= call.in.size() || !call.in[i].tensor.defined()) continue;
    watch.set(call.in[i].tensor, call.types.gradient ? *call.types.gradient : call.types.result);
  }
}

void TypeWatch::Observer::give(const at::Tensor& result, const Call& call) {
  const c10::StorageImpl* storage = storage_or_null(result);
  if (storage == nullptr || std::ranges::find(call.storages, storage) != call.storages.end()) return;
  if (call.name == "aten::cat" && result.dim() == 1) {
    int64_t first = 0;
    for (const OperandType& part : call.in) {
      watch.store_.set_runs(result, watch.store_.runs(part.tensor), first);
      first += static_cast<int64_t>(part.tensor.nbytes());
    }
    return;
  }
  const bool is_sum = result.dim() == 1 && call.name.starts_with("megalith::");
  const bool is_of_keys =
      call.types.of_keys && result.sizes() == call.in[2].tensor.sizes() && result.sizes() != call.in[1].tensor.sizes();
  const Distribution& type = is_of_keys ? *call.types.of_keys : is_sum ? call.types.of_sums : call.types.result;
  if (!type.is_known()) return;
  const bool converts = call.name == "aten::to" || call.name == "aten::_to_copy" || call.name == "aten::clone";
  if (converts && call.in.at(0).tensor.numel() == result.numel()) return watch.copy_runs(result, call.in[0].tensor);
  watch.set(result, type);
}

void TypeWatch::Observer::on_end(const at::RecordFunction& function, at::ObserverContext* context) {
  auto& call = *static_cast<Call*>(context);
  if (call.is_node) return;
  Observer& observer = *newest_type_observer;
  --observer.depth;
  const auto give_all = [&](const Call& maker) {
    for (const c10::IValue& value : function.outputs()) {
      for_each_typed(value, [&](const at::Tensor& tensor) { observer.give(tensor, maker); });
    }
  };
  // Our operators' results are allocated in them.
  if (!call.is_outermost && observer.own != nullptr) give_all(*observer.own);
  if (!call.is_outermost) return;
  if (std::exchange(observer.own, nullptr) == nullptr) give_all(call);
}

TypeWatch::TypeWatch(const TypeAxes& axes)
    : axes_(axes), observer_(new Observer(*this)), outer_(std::exchange(distribution_watch, this)) {
  MEGALITH_CHECK(newest_type_observer == nullptr, "two checks of types on one thread");
  newest_type_observer = observer_.get();
  observer_->callback =
      at::addThreadLocalCallback(at::RecordFunctionCallback(Observer::on_start, Observer::on_end)
                                     .needsInputs(true)
                                     .needsOutputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
}

TypeWatch::~TypeWatch() {
  at::removeCallback(observer_->callback);
  newest_type_observer = nullptr;
  distribution_watch = outer_;
}

void TypeWatch::enter(std::string where) { where_ = std::move(where); }

int TypeWatch::make_place(const std::string& what) {
  places_.push_back(where_.empty() ? what : fmt::format("{}, {}", what, where_));
  return static_cast<int>(places_.size()) - 1;
}

void TypeWatch::tell(int axis, std::string_view problem, int from, int at) {
  TypeFinding found{.axis = axes_.name(axis),
                    .problem = std::string(problem),
                    .from = places_[static_cast<size_t>(from)],
                    .at = places_[static_cast<size_t>(at)]};
  if (std::ranges::find(findings_, found) == findings_.end()) findings_.push_back(std::move(found));
}

void TypeWatch::add_parameter(const Parameter& parameter, const Distribution& type) {
  parameters_[&parameter] = type;
  store_.set(parameter.value(), type);
  weights_[storage_or_null(parameter.value())].push_back(&parameter);
}

void TypeWatch::copy_runs(const at::Tensor& to, const at::Tensor& from) {
  if (!to.is_contiguous() || !from.is_contiguous()) return store_.set(to, store_.of(from));
  const auto new_size = static_cast<int64_t>(to.element_size()), old_size = static_cast<int64_t>(from.element_size());
  std::vector<TypeStore::Run> runs = store_.runs(from);
  for (TypeStore::Run& run : runs) {
    run.begin = run.begin / old_size * new_size;
    run.end = run.end / old_size * new_size;
  }
  store_.set_runs(to, runs);
}

void TypeWatch::set_axis(const at::Tensor& tensor, int axis, Spread spread, const std::string& what) {
  const int place = make_place(what);
  std::vector<TypeStore::Run> runs = store_.runs(tensor);
  for (TypeStore::Run& run : runs) run.type.set(AxisBits{1} << axis, spread, place);
  store_.set_runs(tensor, runs);
}

const Parameter* TypeWatch::parameter_of_gradient(const at::Tensor& gradient) const {
  for (const auto& [parameter, type] : parameters_) {
    if (!parameter->has_grad_buffer()) continue;
    const at::Tensor& buffer = parameter->grad();
    if (storage_or_null(buffer) == storage_or_null(gradient) && buffer.storage_offset() == gradient.storage_offset()) {
      return parameter;
    }
  }
  return nullptr;
}

const Parameter* TypeWatch::parameter_of_value(const at::Tensor& tensor) const {
  const auto found = weights_.find(storage_or_null(tensor));
  if (found == weights_.end()) return nullptr;
  for (const Parameter* parameter : found->second) {
    if (parameter->value().storage_offset() == tensor.storage_offset()) return parameter;
  }
  return nullptr;
}

// ---- Gradients ----

void TypeWatch::expect_gradient(const at::Tensor& tensor) {
  const c10::TensorImpl* address = tensor.unsafeGetTensorImpl();
  if (!tensor.requires_grad() || expected_.contains(address) || weights_.contains(storage_or_null(tensor))) return;
  const Distribution type = store_.of(tensor);
  if (!type.is_known()) return;
  expected_.emplace(address, c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()));
  tensor.register_hook([type](const at::Tensor& gradient) {
    if (newest_type_observer != nullptr) newest_type_observer->watch.check_gradient(type, gradient);
  });
}

void TypeWatch::check_gradient(const Distribution& tensor, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  Distribution type = store_.of(gradient);
  bool is_known = false, has_summands = false;
  for (int axis = 0; axis < axes_.count(); ++axis) {
    const auto i = static_cast<size_t>(axis);
    const Spread own = tensor.spread[i], came = type.spread[i];
    if (own == Spread::kAny || came == Spread::kAny) continue;
    is_known = true;
    std::string_view problem;
    if (own == Spread::kVarying) {
      if (is_equal(came)) problem = "a gradient is summed over ranks that have different parts of the tensor";
      if (came == Spread::kPartial) problem = "the gradient of a rank's part is a summand: its sum is missing";
    } else if (own == Spread::kShared) {
      if (is_equal(came)) problem = "the gradient of what ranks share is summed twice";
      has_summands = has_summands || came == Spread::kVarying;
      if (came == Spread::kVarying) type.set(AxisBits{1} << axis, Spread::kPartial, type.place[i]);
    } else if (differs(came)) {
      problem = "the gradient of what is the same on all ranks differs: a sum over the ranks is missing";
    }
    if (problem.empty()) continue;
    tell(axis, problem, type.place[i], tensor.place[i]);
  }
  if (has_summands) store_.set(gradient, type);
  if (is_known) ++counts_.gradients;
}

at::Tensor TypeWatch::cut(const at::Tensor& part, const std::vector<int>& ranks) {
  const AxisBits axes = axes_.of(ranks);
  at::Tensor own = part.detach().clone();
  Distribution type = store_.of(part);
  const int place = make_place(fmt::format("each {} rank's part", axes_.text(axes)));
  for (int axis = 0; axis < axes_.count(); ++axis) {
    const auto i = static_cast<size_t>(axis);
    if (((axes >> axis) & 1U) == 0 || !differs(type.spread[i])) continue;
    tell(axis, "each rank takes its part of a tensor that differs between them: a sum or a gathering is missing",
         type.place[i], place);
  }
  type.set(axes, Spread::kVarying, place);
  store_.set(own, type);
  return own;
}

void TypeWatch::share(const at::Tensor& tensor, const std::vector<int>& ranks, bool is_sent) {
  const AxisBits axes = axes_.of(ranks);
  Distribution type = store_.of(tensor);
  const int place = make_place(fmt::format("what {} ranks share", axes_.text(axes)));
  for (int axis = 0; axis < axes_.count(); ++axis) {
    const auto i = static_cast<size_t>(axis);
    if (is_sent || ((axes >> axis) & 1U) == 0 || !differs(type.spread[i])) continue;
    tell(axis, "what ranks share differs between them: a sum or a gathering is missing", type.place[i], place);
  }
  type.set(axes, Spread::kShared, place);
  store_.set(tensor, type);
}

void TypeWatch::take_from(const at::Tensor& tensor, const at::Tensor& other) { store_.set(tensor, store_.of(other)); }

void TypeWatch::sum(const at::Tensor& tensor, const std::vector<int>& ranks) {
  Distribution type = store_.of(tensor);
  const AxisBits axes = axes_.of(ranks);
  type.set(axes, Spread::kPartial, make_place(fmt::format("summands of {} ranks", axes_.text(axes))));
  store_.set(tensor, type);
}

// ---- Collectives ----

class TypedGroup : public Group {
 public:
  TypedGroup(std::vector<int> ranks, int rank, std::string axis, AxisBits axes)
      : Group(std::move(ranks), rank, std::move(axis)), axes_(axes) {}

 protected:
  using Runs = std::vector<TypeStore::Run>;

  State start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) override {
    if (TypeWatch* watch = begin(record)) {
      Runs runs = watch->store_.runs(tensor);
      for (TypeStore::Run& run : runs) reduce(*watch, run.type, op, Spread::kSame);
      watch->store_.set_runs(tensor, runs);
    }
    return nullptr;
  }
  State start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) override {
    if (TypeWatch* watch = begin(record)) {
      Runs runs = watch->store_.runs(in);
      for (TypeStore::Run& run : runs) gather(*watch, run.type);
      // Weights keep the types that they were given.
      std::erase_if(runs, [](const TypeStore::Run& run) { return !run.type.is_known(); });
      const int64_t bytes = static_cast<int64_t>(in.nbytes());
      for (int r = 0; r < size(); ++r) watch->store_.set_runs(out, runs, r * bytes);
    }
    return nullptr;
  }
  State start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op, const Record& record) override {
    if (TypeWatch* watch = begin(record)) {
      const int64_t bytes = static_cast<int64_t>(out.nbytes()), first = rank() * bytes;
      Runs own;
      for (TypeStore::Run run : watch->store_.runs(in)) {
        const bool is_own = run.begin < first + bytes && run.end > first;
        reduce(*watch, run.type, op, Spread::kVarying);
        if (!is_own) continue;
        own.push_back({std::max(run.begin, first) - first, std::min(run.end, first + bytes) - first, run.type});
      }
      watch->store_.set_runs(out, own);
    }
    return nullptr;
  }
  State start_all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>&,
                         const std::vector<int64_t>&, const Record& record) override {
    if (TypeWatch* watch = begin(record)) {
      Distribution type = watch->of(in);
      if (type.is_known()) type.set(axes_, Spread::kVarying, place_);
      watch->set(out, type);
    }
    return nullptr;
  }
  State start_broadcast(const at::Tensor& tensor, int, const Record& record) override {
    if (TypeWatch* watch = begin(record)) {
      Distribution type = watch->of(tensor);
      type.set(axes_, Spread::kSame, place_);
      watch->set(tensor, type);
    }
    return nullptr;
  }
  // The n-th received tensor is as the n-th sent one: so are rounds along a ring.
  State start_send_receive(const std::vector<Transfer>& transfers, const Record& record) override {
    TypeWatch* watch = begin(record);
    if (watch == nullptr) return nullptr;
    std::vector<Distribution> sent;
    for (const Transfer& transfer : transfers) {
      if (transfer.is_send) sent.push_back(watch->of(transfer.tensor));
    }
    size_t next = 0;
    for (const Transfer& transfer : transfers) {
      if (!transfer.is_send && next < sent.size()) watch->set(transfer.tensor, sent[next++]);
    }
    return nullptr;
  }
  State start_barrier(const Record&) override { return nullptr; }

 private:
  TypeWatch* begin(const Record& record) {
    if (newest_type_observer == nullptr) return nullptr;
    TypeWatch& watch = newest_type_observer->watch;
    ++watch.counts_.collectives;
    place_ = watch.make_place(fmt::format("{} {} {}", name_of(record->kind), record->axis, record->label));
    return &watch;
  }

  template <typename Visit>
  void for_each_axis(const Visit& visit) const {
    for (int axis = 0; axis < kMostTypeAxes; ++axis) {
      if (((axes_ >> axis) & 1U) != 0) visit(axis, static_cast<size_t>(axis));
    }
  }
  void reduce(TypeWatch& watch, Distribution& type, ReduceOp op, Spread to) const {
    if (!type.is_known()) return;
    for_each_axis([&](int axis, size_t i) {
      if (is_equal(type.spread[i]) && op == ReduceOp::kSum) {
        watch.tell(axis, "what is the same on all ranks is summed over them: it counts once for each", type.place[i],
                   place_);
      }
      if (type.spread[i] == Spread::kPartial && op == ReduceOp::kAvg) {
        watch.tell(axis, "a mean of summands is taken where their sum is meant", type.place[i], place_);
      }
      type.set(AxisBits{1} << axis, to, place_);
    });
  }
  void gather(TypeWatch& watch, Distribution& type) const {
    if (!type.is_known()) return;
    for_each_axis([&](int axis, size_t i) {
      const Spread own = type.spread[i];
      if (is_equal(own)) watch.tell(axis, "what every rank has is gathered from all", type.place[i], place_);
      if (own == Spread::kPartial) {
        watch.tell(axis, "summands are gathered as if they were parts: their sum is missing", type.place[i], place_);
      }
      type.set(AxisBits{1} << axis, Spread::kSame, place_);
    });
  }

  const AxisBits axes_;
  int place_ = 0;
};

GroupFactory TypeWatch::group_factory(const TypeAxes& axes, int rank) {
  return [&axes, rank](std::vector<int> ranks, const std::string& axis) -> std::shared_ptr<Group> {
    const auto own = std::ranges::find(ranks, rank);
    MEGALITH_CHECK(own != ranks.end(), "rank {} is not in its group {}", rank, axis);
    const int position = static_cast<int>(own - ranks.begin());
    const AxisBits along = axes.of(ranks);
    return std::make_shared<TypedGroup>(std::move(ranks), position, axis, along);
  };
}

}  // namespace megalith
