"""Record batches as bytes: headers, records, codecs. Pure."""
