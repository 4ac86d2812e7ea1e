// Values as pickles (protocol 2), of the kinds that files of torch.save and torch.distributed.checkpoint consist of. A
// value is its opcodes, so that a container's are those of its items, one after another.
// Source: CPython, Lib/pickletools.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith::pickled {

std::string none();
std::string boolean(bool value);
std::string whole(int64_t value);
std::string real(double value);
std::string text(std::string_view value);
// A class or function.
std::string name(std::string_view module, std::string_view word);

std::string tuple(const std::vector<std::string>& items);
std::string list(const std::vector<std::string>& items);
using Entries = std::vector<std::pair<std::string, std::string>>;
std::string dict(const Entries& entries);
std::string dict_of(const Entries& entries);              // keys are values too
std::string numbers(const std::vector<int64_t>& values);  // a tuple

std::string call(std::string_view module, std::string_view word, const std::vector<std::string>& arguments);
// An object whose class takes no arguments, and which is given `state`.
std::string object(std::string_view module, std::string_view word, std::string_view state);
std::string torch_size(const std::vector<int64_t>& values);
// A view of storage `key`, which has `count` elements.
std::string tensor(std::string_view storage, std::string_view key, int64_t count, int64_t first,
                   const std::vector<int64_t>& shape, const std::vector<int64_t>& strides);

std::string whole_pickle(std::string_view value);

// Integers of `bytes` bytes, the least significant first.
std::string little(uint64_t value, int bytes);

}  // namespace megalith::pickled
