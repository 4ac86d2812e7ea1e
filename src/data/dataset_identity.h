// megatron-core's description of a data set: the JSON whose hash names its index files, used to find its arrays.
#pragma once

#include <string_view>

#include "core/json.h"
#include "data/sample_source.h"
#include "data/token_source.h"

namespace megalith {

// Fields common to all data sets, in megatron-core's order, without the tokenizer.
OrderedJson megatron_description(std::string_view class_name, const TokenSource& source, const SampleRequest& request);

}  // namespace megalith
