#include "foreign/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "foreign/pickle_names.h"

namespace megalith {
namespace {

constexpr size_t kMostPickleBytes = size_t{512} << 20;
constexpr size_t kMostNameBytes = 200, kMostPathBytes = 10'000;
constexpr int64_t kMostVisits = 1'000'000;

using Kind = PickleValue::Kind;

}  // namespace

class PickleReader {
 public:
  PickleReader(std::string_view bytes, Pickle& pickle) : bytes_(bytes), pickle_(pickle) {
    if (bytes.size() > kMostPickleBytes) {
      fail(fmt::format("a pickle of {} bytes, at most {} are read", bytes.size(), kMostPickleBytes));
    }
  }

  const PickleValue* read() {
    while (true) {
      opcode_at_ = at_;
      const auto opcode = static_cast<unsigned char>(take(1)[0]);
      if (opcode == '.') break;
      step(opcode);
    }
    if (stack_.size() != 1 || !marks_.empty()) fail(fmt::format("it ends with {} values on the stack", stack_.size()));
    return stack_.back();
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw UserError(fmt::format("{}, byte {}: {}", pickle_.where(), opcode_at_, reason),
                    "the file is damaged, or was not written by the trainer: save or fetch it again");
  }

  std::string_view take(size_t count) {
    if (count > bytes_.size() - at_) fail("the pickle is cut off");
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  template <typename Number>
  Number take_number() {
    static_assert(std::endian::native == std::endian::little);
    Number number;
    std::memcpy(&number, take(sizeof(Number)).data(), sizeof(Number));
    return number;
  }
  template <typename Size>
  std::string_view take_counted() {
    const auto size = take_number<Size>();
    if constexpr (std::is_signed_v<Size>) {
      if (size < 0) fail("a negative length");
    }
    if (static_cast<uint64_t>(size) > bytes_.size()) fail("the pickle is cut off");
    return take(static_cast<size_t>(size));
  }
  std::string_view take_line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail("the pickle is cut off");
    const std::string_view line = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }

  PickleValue* make(Kind kind) {
    PickleValue value;
    value.kind = kind;
    pickle_.values_.push_back(std::move(value));
    return &pickle_.values_.back();
  }
  PickleValue* push(Kind kind) {
    stack_.push_back(make(kind));
    return stack_.back();
  }
  void push_text(Kind kind, std::string_view text) { push(kind)->text = text; }
  void push_int(int64_t value, Kind kind = Kind::kInt) { push(kind)->integer = value; }

  // Below a mark the stack may not be touched.
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleValue* top() {
    if (stack_.size() <= floor()) fail("the stack is empty");
    return stack_.back();
  }
  PickleValue* pop() {
    PickleValue* value = top();
    stack_.pop_back();
    return value;
  }
  std::vector<const PickleValue*> pop_many(size_t count) {
    if (stack_.size() - floor() < count) fail("the stack is empty");
    std::vector<const PickleValue*> taken(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return taken;
  }
  std::vector<const PickleValue*> pop_to_mark() {
    if (marks_.empty()) fail("no mark is set");
    std::vector<const PickleValue*> taken = pop_many(stack_.size() - marks_.back());
    marks_.pop_back();
    return taken;
  }

  void push_items(Kind kind, std::vector<const PickleValue*> items) {
    if (kind == Kind::kDict && items.size() % 2 != 0) fail("a dict with a key without a value");
    push(kind)->items = std::move(items);
  }
  void extend(Kind kind, const std::vector<const PickleValue*>& items) {
    PickleValue* to = top();
    // Objects of list-like and dict-like classes get their items so too; none on the list does.
    if (to->kind != kind) fail(kind == Kind::kDict ? "items of a dict for another value" : "items for another value");
    if (kind == Kind::kDict && items.size() % 2 != 0) fail("a dict with a key without a value");
    to->items.insert(to->items.end(), items.begin(), items.end());
  }

  void push_name(std::string_view module, std::string_view name) {
    std::string joined = fmt::format("{}.{}", module, name);
    // A name below a listed prefix may be as long as a text, and is kept each time that it is asked for.
    if (joined.size() > kMostNameBytes || !use_of_name(joined)) {
      joined.resize(std::min(joined.size(), kMostNameBytes));
      throw UserError(fmt::format("{}, byte {}: it asks for the class or function {}, which is not one that "
                                  "checkpoints are made of",
                                  pickle_.where(), opcode_at_, joined),
                      "reading it would mean running code. Save the checkpoint without such objects, or give "
                      "weights as safetensors to --load_hf");
    }
    pickle_.texts_.push_back(std::move(joined));
    push_text(Kind::kName, pickle_.texts_.back());
  }

  // Calls copy items, and one tuple can be the arguments of many. Trainers' calls have tuples of their own, whose items
  // took a byte each at least.
  void count_copies(size_t count) {
    num_copies_ += count;
    if (num_copies_ / 4 > bytes_.size()) fail("calls with more arguments than the pickle's bytes can hold");
  }

  // A name called with arguments.
  void reduce() {
    const PickleValue* arguments = pop();
    const PickleValue* name = pop();
    if (!name->is(Kind::kName) || !arguments->is(Kind::kTuple)) fail("a call of what is no class or function");
    const std::vector<const PickleValue*>& given = arguments->items;
    const NameUse use = *use_of_name(name->text);
    if (use == NameUse::kDict) {
      std::vector<const PickleValue*> items;
      // OrderedDict([[key, value], …]) of old pickles; defaultdict(factory).
      if (given.size() == 1 && given[0]->is(Kind::kList)) {
        for (const PickleValue* pair : given[0]->items) {
          if (!pair->is_sequence() || pair->items.size() != 2) fail("a dict made of what are no pairs");
          count_copies(2);
          items.insert(items.end(), pair->items.begin(), pair->items.end());
        }
      }
      return push_items(Kind::kDict, std::move(items));
    }
    if (use == NameUse::kTuple) {
      if (given.size() > 1 || (given.size() == 1 && !given[0]->is_sequence())) {
        fail(fmt::format("{} of no sequence", name->text));
      }
      if (given.empty()) return push_items(Kind::kTuple, {});
      count_copies(given[0]->items.size());
      return push_items(Kind::kTuple, given[0]->items);
    }
    if (use == NameUse::kBytes) {
      if (given.empty() || !given[0]->is(Kind::kText)) fail("encode of no text");
      return push_text(Kind::kBytes, given[0]->text);
    }
    count_copies(given.size());
    PickleValue* object = push(Kind::kObject);
    object->text = name->text;
    object->items = given;
  }

  void build() {
    const PickleValue* state = pop();
    PickleValue* object = top();
    // An OrderedDict's attributes (_metadata of a module's state) say nothing of its tensors.
    if (object->is(Kind::kDict)) return;
    if (!object->is(Kind::kObject)) fail("state for a value that has none");
    object->state = state;
  }

  void put(uint64_t index) {
    // The memo is a map: an index may be anything, and must not be a size.
    memo_[index] = top();
  }
  void get(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail(fmt::format("memo {} is not set", index));
    stack_.push_back(found->second);
  }

  void push_long(std::string_view digits) {
    PickleValue* value = push(Kind::kInt);
    if (digits.size() > 8) {
      value->kind = Kind::kBytes;
      value->text = digits;
      return;
    }
    uint64_t bits = 0;
    for (size_t i = 0; i < digits.size(); ++i) bits |= uint64_t{static_cast<unsigned char>(digits[i])} << (8 * i);
    const size_t width = 8 * digits.size();
    if (width > 0 && width < 64 && (bits >> (width - 1)) != 0) bits |= ~uint64_t{0} << width;
    value->integer = static_cast<int64_t>(bits);
  }

  void step(unsigned char opcode);
  // False if the opcode is another's: a number, a text or None; a list, tuple or dict, or an item of one.
  bool push_scalar(unsigned char opcode);
  bool collect(unsigned char opcode);

  std::string_view bytes_;
  Pickle& pickle_;
  size_t at_ = 0, opcode_at_ = 0, num_copies_ = 0;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;  // the stack's height at each
  std::unordered_map<uint64_t, PickleValue*> memo_;
};

bool PickleReader::push_scalar(unsigned char opcode) {
  switch (opcode) {
    case 'N':
      return push(Kind::kNone), true;
    case 0x88:
    case 0x89:
      return push_int(opcode == 0x88 ? 1 : 0, Kind::kBool), true;
    case 'J':
      return push_int(take_number<int32_t>()), true;
    case 'K':
      return push_int(take_number<uint8_t>()), true;
    case 'M':
      return push_int(take_number<uint16_t>()), true;
    case 0x8a:
      return push_long(take_counted<uint8_t>()), true;
    case 0x8b:
      return push_long(take_counted<int32_t>()), true;
    case 'G': {
      auto bits = take_number<uint64_t>();
      bits = __builtin_bswap64(bits);
      return push(Kind::kFloat)->real = std::bit_cast<double>(bits), true;
    }
    case 'X':
      return push_text(Kind::kText, take_counted<uint32_t>()), true;
    case 0x8c:
    case 'U':  // SHORT_BINSTRING
      return push_text(Kind::kText, take_counted<uint8_t>()), true;
    case 'T':  // BINSTRING
      return push_text(Kind::kText, take_counted<int32_t>()), true;
    case 0x8d:
      return push_text(Kind::kText, take_counted<uint64_t>()), true;
    case 'B':
      return push_text(Kind::kBytes, take_counted<uint32_t>()), true;
    case 'C':
      return push_text(Kind::kBytes, take_counted<uint8_t>()), true;
    case 0x8e:
    case 0x96:  // BYTEARRAY8
      return push_text(Kind::kBytes, take_counted<uint64_t>()), true;
    default:
      return false;
  }
}

bool PickleReader::collect(unsigned char opcode) {
  switch (opcode) {
    case ']':
      return push_items(Kind::kList, {}), true;
    case '}':
      return push_items(Kind::kDict, {}), true;
    case ')':
      return push_items(Kind::kTuple, {}), true;
    case 0x8f:  // EMPTY_SET
      return push_items(Kind::kList, {}), true;
    case 'a':
      return extend(Kind::kList, pop_many(1)), true;
    case 'e':
    case 0x90:  // ADDITEMS
      return extend(Kind::kList, pop_to_mark()), true;
    case 's':
      return extend(Kind::kDict, pop_many(2)), true;
    case 'u':
      return extend(Kind::kDict, pop_to_mark()), true;
    case 't':
    case 0x91:  // FROZENSET
      return push_items(Kind::kTuple, pop_to_mark()), true;
    case 'l':
      return push_items(Kind::kList, pop_to_mark()), true;
    case 'd':
      return push_items(Kind::kDict, pop_to_mark()), true;
    case 0x85:
    case 0x86:
    case 0x87:
      return push_items(Kind::kTuple, pop_many(opcode - 0x84)), true;
    default:
      return false;
  }
}

void PickleReader::step(unsigned char opcode) {
  if (push_scalar(opcode) || collect(opcode)) return;
  switch (opcode) {
    case 0x80:  // PROTO
      if (const auto version = static_cast<unsigned char>(take(1)[0]); version > 5) {
        fail(fmt::format("pickle protocol {}", version));
      }
      return;
    case 0x95:  // FRAME
      take(8);
      return;
    case '(':
      return marks_.push_back(stack_.size());
    case '0':  // POP
      if (!marks_.empty() && stack_.size() == marks_.back()) return marks_.pop_back();
      pop();
      return;
    case '1':  // POP_MARK
      pop_to_mark();
      return;
    case '2':  // DUP
      return stack_.push_back(top());
    case 'c': {
      const std::string_view module = take_line();
      return push_name(module, take_line());
    }
    case 0x93: {  // STACK_GLOBAL
      const PickleValue* name = pop();
      const PickleValue* module = pop();
      if (!name->is(Kind::kText) || !module->is(Kind::kText)) fail("a class without a name");
      return push_name(module->text, name->text);
    }
    case 'R':
      return reduce();
    case 0x81:  // NEWOBJ
      return reduce();
    case 0x92: {  // NEWOBJ_EX
      const PickleValue* named = pop();
      if (!named->is(Kind::kDict) || !named->items.empty()) fail("a class called with named arguments");
      return reduce();
    }
    case 'b':
      return build();
    case 'q':
      return put(take_number<uint8_t>());
    case 'r':
      return put(take_number<uint32_t>());
    case 0x94:  // MEMOIZE
      return put(memo_.size());
    case 'h':
      return get(take_number<uint8_t>());
    case 'j':
      return get(take_number<uint32_t>());
    case 'Q': {  // BINPERSID
      const PickleValue* id = pop();
      push(Kind::kStored)->items = {id};
      return;
    }
    default:
      fail(fmt::format("opcode 0x{:02x}, which torch.save does not write", opcode));
  }
}

Pickle::Pickle(std::string_view bytes, std::string where) : where_(std::move(where)) {
  root_ = PickleReader(bytes, *this).read();
}

namespace {

// Pairs of a dict, or of an object's fields.
const PickleValue* fields_of(const PickleValue& value) {
  if (value.is(Kind::kDict)) return &value;
  if (!value.is(Kind::kObject) || value.state == nullptr) return nullptr;
  // (fields, slots) of classes with slots.
  const PickleValue* state = value.state;
  if (state->is(Kind::kTuple) && state->items.size() == 2) {
    state = state->items[0]->is(Kind::kDict) ? state->items[0] : state->items[1];
  }
  return state->is(Kind::kDict) ? state : nullptr;
}

template <typename Is>
const PickleValue* find_entry(const PickleValue& value, Is is) {
  const PickleValue* fields = fields_of(value);
  if (fields == nullptr) return nullptr;
  // The last of equal keys counts.
  for (size_t i = fields->items.size(); i >= 2; i -= 2) {
    if (is(*fields->items[i - 2])) return fields->items[i - 1];
  }
  return nullptr;
}

}  // namespace

const PickleValue* PickleValue::find(std::string_view key) const {
  return find_entry(*this, [&](const PickleValue& value) { return value.is(Kind::kText) && value.text == key; });
}

const PickleValue* PickleValue::find(int64_t key) const {
  return find_entry(*this, [&](const PickleValue& value) { return value.is(Kind::kInt) && value.integer == key; });
}

void PickleValue::for_each_entry(
    const std::function<void(const PickleValue& key, const PickleValue& value)>& visit) const {
  const PickleValue* fields = fields_of(*this);
  if (fields == nullptr) return;
  for (size_t i = 0; i + 1 < fields->items.size(); i += 2) visit(*fields->items[i], *fields->items[i + 1]);
}

std::optional<double> PickleValue::number() const {
  if (is(Kind::kInt)) return static_cast<double>(integer);
  if (is(Kind::kFloat)) return real;
  return std::nullopt;
}

std::optional<int64_t> PickleValue::whole() const {
  if (is(Kind::kInt)) return integer;
  return std::nullopt;
}

std::optional<std::vector<int64_t>> PickleValue::whole_numbers() const {
  if (!is_sequence()) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const PickleValue* item : items) {
    if (!item->is(Kind::kInt)) return std::nullopt;
    numbers.push_back(item->integer);
  }
  return numbers;
}

std::optional<std::string> PickleValue::option_text() const {
  switch (kind) {
    case Kind::kBool:
      return integer != 0 ? "true" : "false";
    case Kind::kInt:
      return fmt::format("{}", integer);
    case Kind::kFloat:
      return fmt::format("{}", real);
    case Kind::kText:
      return std::string(text);
    default:
      return std::nullopt;
  }
}

void for_each_item(const Pickle& pickle, const PickleValue& from,
                   const std::function<void(const std::string& path, const PickleValue& value)>& visit,
                   int max_depth) {
  int64_t num_visits = 0;
  std::function<void(const std::string&, const PickleValue&, int)> walk;
  walk = [&](const std::string& path, const PickleValue& value, int depth) {
    if (depth > max_depth || ++num_visits > kMostVisits || path.size() > kMostPathBytes) {
      throw UserError(fmt::format("{}: values are nested more than {} deep, are more than {}, or have longer names "
                                  "than {} bytes",
                                  pickle.where(), max_depth, kMostVisits, kMostPathBytes),
                      "the file is damaged: save or fetch it again");
    }
    const std::string beginning = path.empty() ? "" : path + ".";
    if (value.is(Kind::kDict)) {
      value.for_each_entry([&](const PickleValue& key, const PickleValue& item) {
        if (const auto name = key.option_text()) walk(beginning + *name, item, depth + 1);
      });
    } else if (value.is_sequence()) {
      for (size_t i = 0; i < value.items.size(); ++i) {
        walk(fmt::format("{}{}", beginning, i), *value.items[i], depth + 1);
      }
    } else {
      visit(path, value);
    }
  };
  walk("", from, 0);
}

}  // namespace megalith
