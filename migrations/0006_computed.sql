-- What an attempt's engine had to compute before its first token.

ALTER TABLE attempts ADD COLUMN computed_tokens bigint;  -- of prompt and resumed output, warming included; null: nobody said
