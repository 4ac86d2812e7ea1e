// Pictures with captions, encoded, as batches (flux_batches.h).
#pragma once

#include "core/log.h"
#include "data/data_sets.h"
#include "data/flux_data_options.h"
#include "kinds/flow/flux_batches.h"
#include "models/model_config.h"

namespace megalith {

FluxSampleShape flux_sample_shape(const ModelConfig& model, const FluxDataOptions& data);

// What the options name: folders that `prepare flux` wrote (flux_folder.h), or with mock_data made-up numbers of the
// right shapes, a function of the sample's number.
// UserErrors, all at once: folders that are unfinished or damaged, that were prepared for another size, text length,
// mode or other encoders than the run has, a split without pictures. A sample whose bytes were changed is refused when
// it is read.
// check_flux_data() tells what is wrong with the folders before a run begins.
std::vector<UserError> check_flux_data(const DataOptions& options, const FluxSampleShape& shape);
DataSets open_flux_data(const DataOptions& options, const FluxSampleShape& shape, const DataSetup& setup, Logger& log);

// Adds to rows, by their sample_index, latents, states and pooled vectors that mean nothing.
void add_mock_pictures(Batch& rows, const FluxSampleShape& shape);

}  // namespace megalith
