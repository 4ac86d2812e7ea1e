// Pre-tokenizers: cut a text into the pieces that the model encodes one by one. The components of tokenizer.json's
// "pre_tokenizer". Pieces are handed on as they are found, so a text of any length needs no list of them.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <type_traits>

namespace megalith {

// A reference to a callable that takes a piece; the callable outlives the call it is passed to.
class PieceSink {
 public:
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, PieceSink>)
      PieceSink(F&& function)  // NOLINT: conversion from a lambda is the point
      : object_(const_cast<void*>(static_cast<const void*>(&function))),
        call_(
            [](void* object, std::string_view piece) { (*static_cast<std::remove_reference_t<F>*>(object))(piece); }) {}
  void operator()(std::string_view piece) const { call_(object_, piece); }

 private:
  void* object_;
  void (*call_)(void*, std::string_view);
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Hands the pieces of `text` (valid UTF-8) to `sink` in order; never an empty one.
  virtual void split(std::string_view text, PieceSink sink) const = 0;
};

struct PreTokenizerSpec {
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  // Whether the last step is ByteLevel: the model then works on bytes, not on characters. (The bytes stay bytes here;
  // the printable alphabet in which tokenizer.json spells them is undone when the vocabulary is read.)
  bool is_byte_level = false;
};

// Reads the component. UserError for one that is not supported, naming it and `where`.
PreTokenizerSpec make_pre_tokenizer(const nlohmann::json& json, std::string_view where);

}  // namespace megalith
