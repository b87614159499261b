"""Record batches as bytes: headers, records, codecs. Pure: no I/O, no clock."""
