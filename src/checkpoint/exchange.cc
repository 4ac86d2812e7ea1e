#include "checkpoint/exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "core/error.h"
#include "core/machine_error.h"

namespace megalith {
namespace {

at::Tensor bytes_of(std::string_view text, int64_t size) {
  at::Tensor bytes = at::full({size}, 0, at::TensorOptions().dtype(at::kByte));
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

}  // namespace

std::vector<std::string> gather_texts(Group& group, std::string_view text, std::string_view label) {
  if (group.size() == 1) return {std::string(text)};
  const at::Tensor size = at::full({1}, static_cast<int64_t>(text.size()), at::TensorOptions().dtype(at::kLong));
  const at::Tensor sizes = group.gathered(size.to(group.device()), label).cpu();
  const auto* num_bytes = sizes.const_data_ptr<int64_t>();
  const int64_t longest = *std::max_element(num_bytes, num_bytes + group.size());
  if (longest == 0) return std::vector<std::string>(static_cast<size_t>(group.size()));
  const at::Tensor all = group.gathered(bytes_of(text, longest).to(group.device()), label).cpu();
  std::vector<std::string> texts;
  for (int rank = 0; rank < group.size(); ++rank) {
    texts.emplace_back(reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>()) + rank * longest,
                       static_cast<size_t>(num_bytes[rank]));
  }
  return texts;
}

std::string broadcast_text(Group& group, std::string_view text, int root, std::string_view label) {
  return gather_texts(group, group.rank() == root ? text : std::string_view(), label)[static_cast<size_t>(root)];
}

void run_on_all(Group& group, std::string_view label, const std::function<void()>& body) {
  std::exception_ptr own;
  std::string report;  // kind, message, unit separator, remedy
  try {
    body();
  } catch (const UserError& error) {
    own = std::current_exception();
    const bool is_of_machine = dynamic_cast<const MachineError*>(&error) != nullptr;
    report = fmt::format("{}{}\x1f{}", is_of_machine ? 'm' : 'u', error.message(), error.remedy());
  } catch (const std::exception& error) {
    own = std::current_exception();
    report = fmt::format("i{}", error.what());
  }
  const std::vector<std::string> reports = gather_texts(group, report, label);
  if (own) std::rethrow_exception(own);
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].empty()) continue;
    const std::string text = reports[rank].substr(1);
    const std::string speaker = fmt::format("[rank {}] ", group.ranks()[rank]);
    if (reports[rank][0] == 'i') throw InternalError(speaker + text);
    const size_t end = text.find('\x1f');
    const std::string message = speaker + text.substr(0, end), remedy = text.substr(end + 1);
    if (reports[rank][0] == 'm') throw MachineError(message, remedy);
    throw UserError(message, remedy);
  }
}

}  // namespace megalith
