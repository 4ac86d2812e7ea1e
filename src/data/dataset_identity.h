// How megatron-core describes a data set: the JSON whose hash names its index files. Read to find arrays that
// megatron-core built.
#pragma once

#include <string_view>

#include "core/json.h"
#include "data/sample_source.h"
#include "data/token_source.h"

namespace megalith {

// The fields that all data sets have, in megatron-core's order and without the tokenizer.
OrderedJson megatron_description(std::string_view class_name, const TokenSource& source, const SampleRequest& request);

}  // namespace megalith
