"""`rmqkit demo-spark` streams orders through a broker into Spark, sums them by window, writes the sums to a
topic and to Parquet, and checks that all sums agree."""
