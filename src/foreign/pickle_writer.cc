#include "foreign/pickle_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace megalith::pickled {
namespace {

std::string joined(const std::vector<std::string>& items) {
  std::string all;
  for (const std::string& item : items) all += item;
  return all;
}

}  // namespace

std::string little(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string none() { return "N"; }

std::string boolean(bool value) { return value ? "\x88" : "\x89"; }

std::string whole(int64_t value) {
  if (value == static_cast<int32_t>(value)) return "J" + little(static_cast<uint64_t>(value), 4);
  return "\x8a\x08" + little(static_cast<uint64_t>(value), 8);
}

std::string real(double value) {
  std::string bytes = little(std::bit_cast<uint64_t>(value), 8);
  std::reverse(bytes.begin(), bytes.end());
  return "G" + bytes;
}

std::string text(std::string_view value) { return "X" + little(value.size(), 4) + std::string(value); }

std::string name(std::string_view module, std::string_view word) { return fmt::format("c{}\n{}\n", module, word); }

std::string tuple(const std::vector<std::string>& items) { return "(" + joined(items) + "t"; }

std::string list(const std::vector<std::string>& items) { return "](" + joined(items) + "e"; }

std::string dict_of(const Entries& entries) {
  std::string all = "}(";
  for (const auto& [key, value] : entries) all.append(key).append(value);
  return all + "u";
}

std::string dict(const Entries& entries) {
  Entries keyed = entries;
  for (auto& [key, value] : keyed) key = text(key);
  return dict_of(keyed);
}

std::string numbers(const std::vector<int64_t>& values) {
  std::vector<std::string> items;
  for (const int64_t value : values) items.push_back(whole(value));
  return tuple(items);
}

std::string call(std::string_view module, std::string_view word, const std::vector<std::string>& arguments) {
  return name(module, word) + tuple(arguments) + "R";
}

std::string object(std::string_view module, std::string_view word, std::string_view state) {
  return name(module, word) + ")\x81" + std::string(state) + "b";
}

std::string torch_size(const std::vector<int64_t>& values) { return call("torch", "Size", {numbers(values)}); }

std::string tensor(std::string_view storage, std::string_view key, int64_t count, int64_t first,
                   const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  const std::string id = tuple({text("storage"), name("torch", storage), text(key), text("cpu"), whole(count)}) + "Q";
  return call(
      "torch._utils", "_rebuild_tensor_v2",
      {id, whole(first), numbers(shape), numbers(strides), boolean(false), call("collections", "OrderedDict", {})});
}

std::string whole_pickle(std::string_view value) { return "\x80\x02" + std::string(value) + "."; }

}  // namespace megalith::pickled
